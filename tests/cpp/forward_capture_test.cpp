#include "forward_fixture.h"

// Capturing forwards: the other column of the state table, and strict mode.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::place;
using testing_support::Step;
using testing_support::Verbs;
using testing_support::weight;

using ForwardCaptureTest = ForwardFixture;

TEST_F(ForwardCaptureTest, PlannedWindowsBecomeNodesAndTheLastIsJoined) {
  eager();
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.verbs,
            (Verbs{"mark 0@1", "attach 0@1 window 0 auto", "mark 0@1", "attach 0@1 window 1 auto", "join 0@1"}));
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_EQ(reason(), "");
  EXPECT_EQ(state().num_launched(), 2);
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardCaptureTest, AWindowThatIsOffBeforeTheCaptureGetsNoNode) {
  eager();
  prefetcher->set_window(signature, 0, 0, std::nullopt, backend, main);
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.verbs, (Verbs{"mark 0@1", "attach 0@1 window 1 auto", "join 0@1"}));
  EXPECT_EQ(reason(), "");
  EXPECT_EQ(state().num_launched(), 1);
}

TEST_F(ForwardCaptureTest, AGraphWithoutNodesBecauseAllIsOffSaysSoAndIsNoStrictError) {
  use({.strict = true});
  eager();
  for (const int64_t collective_index : {0, 1})
    prefetcher->set_window(signature, collective_index, 0, std::nullopt, backend, main);
  capture();
  EXPECT_CONTAINS("every window was off before the capture", reason());
  EXPECT_EQ(backend.num_verbs("attach"), 0);
}

TEST_F(ForwardCaptureTest, TheConfiguredPlacementReachesTheBackend) {
  use({.placement = Placement::kSideStream});
  eager();
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.verbs[1], "attach 0@1 window 0 side_stream");
}

TEST_F(ForwardCaptureTest, UnlearnedFreezesWithoutWindowsAndSaysWhy) {
  capture();
  EXPECT_TRUE(backend.verbs.empty());
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_CONTAINS("captured before any eager forward", reason());
  eager();
  EXPECT_EQ(state().plan(), nullptr) << "frozen: no longer learned";
}

TEST_F(ForwardCaptureTest, FrozenAndEagerPrefetchesWithoutLearning) {
  eager();
  capture();
  backend.take_verbs();
  steps[0].weights = {weight(0x9000)};
  eager();
  EXPECT_EQ(backend.num_verbs("fork"), 2);
  EXPECT_EQ(backend.num_verbs("make_table"), 0);
  EXPECT_EQ(state().plan()->windows[0].segments[0].address, 0x1000u);
}

TEST_F(ForwardCaptureTest, FrozenAndCapturedAgainMakesNodesAgain) {
  eager();
  capture();
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.num_verbs("attach"), 2);
  EXPECT_EQ(state().num_captures(), 2);
}

TEST_F(ForwardCaptureTest, AWindowSetToZeroBeforeTheCaptureGetsNoNode) {
  eager();
  prefetcher->set_window(signature, 0, 0, {}, backend, main);
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.verbs, (Verbs{"mark 0@1", "attach 0@1 window 1 auto", "join 0@1"}));
  EXPECT_EQ(reason(), "") << "as asked";
}

TEST_F(ForwardCaptureTest, EveryWindowSetToZeroBeforeTheCaptureIsSaid) {
  eager();
  prefetcher->set_window(signature, 0, 0, {}, backend, main);
  prefetcher->set_window(signature, 1, 0, {}, backend, main);
  capture();
  EXPECT_EQ(backend.num_verbs("attach"), 0);
  EXPECT_CONTAINS("every window was off", reason());
}

TEST_F(ForwardCaptureTest, ABudgetOfZeroThatNobodySetStillGetsNodes) {
  use({.budget_bytes = 0});
  eager();
  capture();
  EXPECT_EQ(backend.num_verbs("attach"), 2) << "a later set_window must find its node";
}

TEST_F(ForwardCaptureTest, ACaptureRecordsNothing) {
  eager();
  const auto plan = state().plan();
  steps[0].weights = {weight(0x9000)};
  capture();
  EXPECT_EQ(state().plan(), plan);
}

TEST_F(ForwardCaptureTest, FewerCollectivesThanLearnedIsReported) {
  eager();
  steps.pop_back();
  capture();
  EXPECT_EQ(reason(), "mismatch: captured 2 collectives, learned 3");
}

TEST_F(ForwardCaptureTest, MoreCollectivesThanLearnedIsReportedAndLaunchesNothingPastThePlan) {
  eager();
  backend.take_verbs();
  steps.push_back({CollectiveKind::kAllReduce, {}});
  capture();
  EXPECT_EQ(reason(), "mismatch: captured 4 collectives, learned 3");
  EXPECT_EQ(backend.num_verbs("attach"), 2);
}

TEST_F(ForwardCaptureTest, AnotherKindThanLearnedIsReportedAndEndsTheWindows) {
  eager();
  backend.take_verbs();
  steps[1].kind = CollectiveKind::kAllReduce;
  capture();
  EXPECT_EQ(reason(), "mismatch: captured collectives of other kinds than learned");
  EXPECT_EQ(backend.num_verbs("attach"), 1);
}

TEST_F(ForwardCaptureTest, ACapturedForwardWithoutACollectiveFreezesAsAMismatch) {
  eager();
  capture(std::vector<Step>{});
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_EQ(reason(), "mismatch: captured 0 collectives, learned 3");
}

TEST_F(ForwardCaptureTest, ACollectiveOfAnotherDeviceKeepsItsHandsOffTheOpenWindow) {
  eager();
  backend.take_verbs();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, main);
  current_forward()->collective_end(backend, place(1, 9));  // not captured there
  end_forward();
  backend.captures.clear();
  EXPECT_EQ(backend.verbs, (Verbs{"mark 0@1"}));
}

TEST_F(ForwardCaptureTest, AnEagerOutstandingPrefetchIsLeftForEagerCode) {
  eager();
  Outstanding::of(backend).fork({nullptr, 0, {weight(0x1000)}, Form::kAuto}, main);
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.num_verbs("join"), 1) << "of the capture's own nodes";
  EXPECT_TRUE(outstanding());
  backend.take_verbs();
  eager();
  EXPECT_EQ(backend.verbs.front(), "join 0@1");
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardCaptureTest, AForwardThatFailsInACaptureIsJoinedToo) {
  eager();
  backend.take_verbs();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce);
  end_forward();
  backend.captures.clear();
  EXPECT_EQ(backend.verbs.back(), "join 0@1");
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardCaptureTest, ACaptureThatEndsInsideACollectiveGetsNoNode) {
  eager();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, main);
  backend.captures.clear();
  current_forward()->collective_end(backend, main);
  end_forward();
  EXPECT_EQ(backend.num_verbs("attach"), 0);
  EXPECT_CONTAINS("mismatch", reason());
}

TEST_F(ForwardCaptureTest, ACaptureThatEndsBeforeTheForwardLeavesNothingOutstanding) {
  eager();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce);
  backend.captures.clear();
  end_forward();
  EXPECT_EQ(backend.num_verbs("join"), 0) << "there is no capture to join in";
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardCaptureTest, AForwardCapturedInPiecesLeavesNothingOutstanding) {
  eager();
  ASSERT_TRUE(begin());
  for (size_t i = 0; i < steps.size(); ++i) {
    backend.captures[1] = kCapture + i;
    collective(steps[i].kind);
  }
  backend.captures.clear();
  end_forward();
  EXPECT_EQ(backend.num_verbs("attach"), 2);
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(state().state(), State::kFrozen);
}

TEST_F(ForwardCaptureTest, ACaptureThatBeginsInsideTheForwardFreezes) {
  eager();
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  backend.captures[1] = kCapture;
  collective(steps[1].kind);
  end_forward();
  backend.captures.clear();
  EXPECT_EQ(state().state(), State::kFrozen);
}

class ForwardStrictTest : public ForwardFixture {
 protected:
  ForwardStrictTest() { use({.strict = true}); }
  std::string error_of_capture() {
    try {
      capture();
    } catch (const StrictError& error) {
      backend.captures.clear();
      return error.what();
    }
    return "no error";
  }
};

TEST_F(ForwardStrictTest, ThrowsAtTheFirstFrozenSignatureWithoutAWindowWithTheReason) {
  const auto error = error_of_capture();
  EXPECT_CONTAINS("1 tokens, mode decode, has no window", error);
  EXPECT_CONTAINS("captured before any eager forward", error);
  EXPECT_EQ(error_of_capture(), "no error") << "only at the first";
}

TEST_F(ForwardStrictTest, ThrowsAfterTheForwardIsClosed) {
  EXPECT_NE(error_of_capture(), "no error");
  EXPECT_EQ(current_forward(), nullptr);
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardStrictTest, SaysWhyASignatureWasLatchedOff) {
  backend.failing_verb = "make_table";
  eager();
  EXPECT_CONTAINS("make_table failed", error_of_capture());
}

TEST_F(ForwardStrictTest, IsSilentWhenWindowsBecameNodes) {
  eager();
  EXPECT_EQ(error_of_capture(), "no error");
}

TEST_F(ForwardStrictTest, IsSilentWhenWindowsAreOffByChoice) {
  eager();
  prefetcher->set_window(signature, 0, 0, {}, backend, main);
  prefetcher->set_window(signature, 1, 0, {}, backend, main);
  EXPECT_EQ(error_of_capture(), "no error");
}

TEST_F(ForwardStrictTest, IsSilentInEagerForwards) {
  run({});
  eager();
}

}  // namespace
}  // namespace l2pf
