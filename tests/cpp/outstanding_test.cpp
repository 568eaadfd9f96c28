#include "outstanding.h"

#include "fake_backend.h"

namespace l2pf {
namespace {

using testing_support::FakeBackend;
using testing_support::new_fake_backend;
using testing_support::place;
using testing_support::Verbs;
using testing_support::weight;

class OutstandingTest : public ::testing::Test {
 protected:
  FakeBackend& backend = new_fake_backend();
  Outstanding& outstanding = Outstanding::of(backend);
  Prefetch prefetch{nullptr, 0, {weight(0x1000)}, Form::kAuto};
};

TEST_F(OutstandingTest, OneForEachBackend) {
  EXPECT_EQ(&Outstanding::of(backend), &outstanding);
  EXPECT_NE(&Outstanding::of(new_fake_backend()), &outstanding);
}

TEST_F(OutstandingTest, JoinWithoutAPrefetchDoesNothing) {
  outstanding.join(place(0), 0);
  outstanding.join(place(0), 5);
  EXPECT_TRUE(backend.verbs.empty());
}

TEST_F(OutstandingTest, AForkJoinsItsPredecessorSoThatOneIsOutstanding) {
  outstanding.fork(prefetch, place(0));
  outstanding.fork(prefetch, place(0));
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 segments 1", "join 0@1", "fork 0@1 segments 1"}));
  EXPECT_TRUE(outstanding.any(0));
}

TEST_F(OutstandingTest, AJoinEndsItOnce) {
  outstanding.fork(prefetch, place(0));
  outstanding.join(place(0), 0);
  outstanding.join(place(0), 0);
  EXPECT_EQ(backend.num_verbs("join"), 1);
  EXPECT_FALSE(outstanding.any(0));
}

TEST_F(OutstandingTest, TwoDevicesDoNotJoinEachOther) {
  outstanding.fork(prefetch, place(0));
  outstanding.fork(prefetch, place(1));
  EXPECT_EQ(backend.num_verbs("join"), 0);
  outstanding.join(place(1), 0);
  EXPECT_TRUE(outstanding.any(0));
  EXPECT_FALSE(outstanding.any(1));
}

TEST_F(OutstandingTest, TheCpuIsADeviceOfItsOwn) {
  outstanding.fork(prefetch, place(kCpu));
  EXPECT_TRUE(outstanding.any(kCpu));
  EXPECT_FALSE(outstanding.any(0));
  outstanding.join(place(0), 0);
  EXPECT_TRUE(outstanding.any(kCpu));
}

TEST_F(OutstandingTest, AnEagerPrefetchIsNotJoinedInsideACapture) {
  outstanding.fork(prefetch, place(0));
  outstanding.attach(prefetch, Placement::kAuto, place(0), 5);
  outstanding.join(place(0), 5);
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 segments 1", "attach 0@1 segments 1 auto", "join 0@1"}));
  EXPECT_TRUE(outstanding.any(0)) << "the eager one waits for an eager join";
  outstanding.join(place(0), 0);
  EXPECT_FALSE(outstanding.any(0));
}

TEST_F(OutstandingTest, ANodeIsNotJoinedByEagerCode) {
  outstanding.attach(prefetch, Placement::kAuto, place(0), 5);
  outstanding.fork(prefetch, place(0, 2));
  outstanding.join(place(0, 2), 0);
  EXPECT_EQ(backend.verbs, (Verbs{"attach 0@1 segments 1 auto", "fork 0@2 segments 1", "join 0@2"}));
  EXPECT_TRUE(outstanding.any(0));
}

TEST_F(OutstandingTest, NodesOfOneCaptureAreJoinedOnce) {
  outstanding.attach(prefetch, Placement::kSideStream, place(0), 5);
  outstanding.attach(prefetch, Placement::kSideStream, place(0), 5);
  outstanding.join(place(0), 5);
  EXPECT_EQ(backend.num_verbs("join"), 1) << "the backend orders each node behind the previous one";
}

TEST_F(OutstandingTest, TwoCapturesDoNotJoinEachOther) {
  outstanding.attach(prefetch, Placement::kAuto, place(0, 1), 5);
  outstanding.attach(prefetch, Placement::kAuto, place(0, 2), 6);
  outstanding.join(place(0, 2), 6);
  EXPECT_TRUE(outstanding.any(0));
}

TEST_F(OutstandingTest, ACaptureThatEndedHasNothingToJoin) {
  outstanding.attach(prefetch, Placement::kAuto, place(0), 5);
  outstanding.forget_capture(0, 5);
  EXPECT_FALSE(outstanding.any(0));
}

TEST_F(OutstandingTest, ForgettingACaptureLeavesEagerPrefetchesAlone) {
  outstanding.fork(prefetch, place(0));
  outstanding.forget_capture(0, 0);
  EXPECT_TRUE(outstanding.any(0));
}

TEST_F(OutstandingTest, AForkThatFailedIsStillJoined) {
  backend.failing_verb = "fork";
  EXPECT_THROW(outstanding.fork(prefetch, place(0)), BackendError);
  EXPECT_TRUE(outstanding.any(0));
  outstanding.join(place(0), 0);
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 segments 1", "join 0@1"}));
}

TEST_F(OutstandingTest, AnAttachThatFailedAddedNothing) {
  backend.failing_verb = "attach";
  EXPECT_THROW(outstanding.attach(prefetch, Placement::kAuto, place(0), 5), BackendError);
  EXPECT_FALSE(outstanding.any(0));
}

TEST_F(OutstandingTest, AJoinThatFailedIsNotTriedAgain) {
  outstanding.fork(prefetch, place(0));
  backend.failing_verb = "join";
  EXPECT_THROW(outstanding.join(place(0), 0), BackendError);
  EXPECT_NO_THROW(outstanding.join(place(0), 0));
  EXPECT_FALSE(outstanding.any(0));
}

}  // namespace
}  // namespace l2pf
