#include "forward_fixture.h"

// A device call that fails latches its signature off; the forward and every other signature go on.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::Verbs;
using testing_support::weight;

class ForwardLatchTest : public ForwardFixture {
 protected:
  void expect_latched(const std::string& verb) {
    EXPECT_TRUE(state().latched_off());
    EXPECT_EQ(reason(), "latched off: " + verb + " failed");
    EXPECT_FALSE(outstanding());
  }
  void expect_other_signature_works() {
    backend.failing_verb.clear();
    steps = {{CollectiveKind::kAllReduce, {weight(0x1000)}}, {CollectiveKind::kAllReduce, {weight(0x2000)}}};
    const Signature latched = std::exchange(signature, {1, 2, "decode"});
    eager();
    backend.take_verbs();
    eager();
    EXPECT_EQ(backend.num_verbs("fork"), 2);
    EXPECT_FALSE(state().latched_off());
    signature = latched;
  }
};

TEST_F(ForwardLatchTest, AFailingForkLatchesOffAndLaterCollectivesDoNothing) {
  eager();
  backend.take_verbs();
  backend.failing_verb = "fork";
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"})) << "what was started is joined at the end";
  expect_latched("fork");
  EXPECT_EQ(state().num_launched(), 0);
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, AFailingJoinLatchesOff) {
  eager();
  backend.take_verbs();
  backend.failing_verb = "join";
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"}));
  expect_latched("join");
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, AFailingJoinAtTheEndLatchesOffAndLeavesNothingOutstanding) {
  steps.resize(1);
  eager();
  backend.failing_verb = "join";
  eager();
  expect_latched("join");
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, AFailingAttachLatchesOff) {
  eager();
  backend.take_verbs();
  backend.failing_verb = "attach";
  capture();
  EXPECT_EQ(backend.verbs, (Verbs{"mark 0@1", "attach 0@1 window 0 auto"}));
  expect_latched("attach");
  EXPECT_EQ(state().state(), State::kFrozen);
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, AFailingMarkLatchesOff) {
  eager();
  backend.take_verbs();
  backend.failing_verb = "mark";
  capture();
  EXPECT_EQ(backend.verbs, (Verbs{"mark 0@1"}));
  expect_latched("mark");
}

TEST_F(ForwardLatchTest, AFailingTableLatchesOff) {
  backend.failing_verb = "make_table";
  eager();
  expect_latched("make_table");
  EXPECT_EQ(state().state(), State::kUnlearned);
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, AnErrorThatIsNotTheDevicesLatchesOffToo) {
  eager();
  backend.fails_with_system_error = true;
  backend.failing_verb = "fork";
  EXPECT_NO_THROW(eager());
  EXPECT_CONTAINS("latched off: fork failed: ", reason());
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardLatchTest, AFailingTableIsNotTriedAgain) {
  backend.failing_verb = "make_table";
  eager();
  eager();
  EXPECT_EQ(backend.num_verbs("make_table"), 1);
}

TEST_F(ForwardLatchTest, AFailingAutoBudgetLatchesOff) {
  backend.failing_verb = "auto_budget_bytes";
  eager();
  expect_latched("auto_budget_bytes");
}

TEST_F(ForwardLatchTest, AFailingCaptureIdLatchesOffAndIsAskedNoMoreByCollectives) {
  eager();
  backend.take_verbs();
  backend.failing_verb = "capture_id";
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  const int num_calls = backend.num_capture_id_calls;
  collective(steps[1].kind);
  collective(steps[2].kind);
  EXPECT_EQ(backend.num_capture_id_calls, num_calls);
  EXPECT_EQ(current_forward()->num_collectives(), 3) << "the forward goes on";
  end_forward();
  EXPECT_TRUE(backend.verbs.empty());
  expect_latched("capture_id");
  expect_other_signature_works();
}

TEST_F(ForwardLatchTest, ACaptureIdThatFailsWithAPrefetchOutstandingStillJoinsIt) {
  eager();
  backend.take_verbs();
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  backend.failing_verb = "capture_id";
  collective(steps[1].kind);
  end_forward();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"}));
  expect_latched("capture_id");
}

TEST_F(ForwardLatchTest, TheNextForwardOfALatchedSignatureDoesNothing) {
  eager();
  backend.failing_verb = "fork";
  eager();
  backend.failing_verb.clear();
  backend.take_verbs();
  eager();
  capture();
  EXPECT_TRUE(backend.verbs.empty());
  expect_latched("fork");
}

TEST_F(ForwardLatchTest, TheFirstFailureOfAForwardIsTheReason) {
  eager();
  backend.failing_verb = "fork";
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  backend.failing_verb = "join";
  end_forward();
  expect_latched("fork");
}

TEST_F(ForwardLatchTest, InvalidateUnlatches) {
  backend.failing_verb = "make_table";
  eager();
  backend.failing_verb.clear();
  prefetcher->invalidate();
  eager();
  EXPECT_FALSE(state().latched_off());
  EXPECT_EQ(state().state(), State::kPlanned);
}

TEST_F(ForwardLatchTest, AFailureInAForwardFromBeforeInvalidateIsIgnored) {
  eager();
  ASSERT_TRUE(begin());
  prefetcher->invalidate();
  backend.failing_verb = "fork";
  collective(steps[0].kind);
  end_forward();
  EXPECT_FALSE(state().latched_off());
  EXPECT_CONTAINS("invalidated", reason());
}

}  // namespace
}  // namespace l2pf
