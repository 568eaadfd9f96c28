#include "signature.h"

#include "fake_backend.h"

namespace l2pf {
namespace {

using testing_support::FakeTable;
using testing_support::weight;

Recording recording_of(uintptr_t address, int64_t num_bytes = 64) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(address, num_bytes), 0);
  return recording;
}

class SignatureStateTest : public ::testing::Test {
 protected:
  SignatureState state;

  ForwardResult saw(Recording recording) const {
    ForwardResult result;
    result.num_collectives = recording.num_collectives();
    result.recording = std::move(recording);
    result.generation = state.snapshot().generation;
    return result;
  }
  ForwardResult captured(int64_t num_collectives, int64_t num_launched) const {
    ForwardResult result;
    result.captured = true;
    result.num_collectives = num_collectives;
    result.num_launched = num_launched;
    result.generation = state.snapshot().generation;
    return result;
  }
  void learn(const Recording& recording, const PlanOptions& options = {}) {
    const auto plan = std::make_shared<const Plan>(make_plan(recording, options));
    const std::vector<WindowSetting> settings(plan->windows.size(), WindowSetting{64, Form::kAuto});
    const auto result = saw(recording);
    ASSERT_TRUE(state.wants_plan(result));
    const auto table = plan->windows.empty() ? nullptr : std::make_shared<FakeTable>(plan, settings);
    std::ignore = state.learn({plan, table, settings, {}, recording});
    state.finish(result);
  }
};

TEST(Signature, DiffersByModelTokensAndMode) {
  const Signature one{1, 1, "decode"};
  EXPECT_EQ(one, (Signature{1, 1, "decode"}));
  EXPECT_NE(one, (Signature{2, 1, "decode"}));
  EXPECT_NE(one, (Signature{1, 2, "decode"}));
  EXPECT_NE(one, (Signature{1, 1, "decode/lora"}));
}

TEST_F(SignatureStateTest, StartsUnlearnedAndSaysWhy) {
  EXPECT_EQ(state.state(), State::kUnlearned);
  EXPECT_EQ(state.reason(), "no eager forward seen yet");
}

TEST_F(SignatureStateTest, UnlearnedAndEagerWithACollectiveIsPlanned) {
  learn(recording_of(0x1000));
  EXPECT_EQ(state.state(), State::kPlanned);
  EXPECT_EQ(state.reason(), "");
  EXPECT_EQ(state.num_eager(), 1);
}

TEST_F(SignatureStateTest, UnlearnedAndEagerWithoutACollectiveStays) {
  const auto nothing = saw(Recording());
  EXPECT_FALSE(state.wants_plan(nothing));
  state.finish(nothing);
  EXPECT_EQ(state.state(), State::kUnlearned);
  EXPECT_CONTAINS("no collective seen", state.reason());
}

TEST_F(SignatureStateTest, UnlearnedAndCapturedFreezesAndSaysWhy) {
  state.finish(captured(3, 0));
  EXPECT_EQ(state.state(), State::kFrozen);
  EXPECT_CONTAINS("captured before any eager forward", state.reason());
  EXPECT_FALSE(state.wants_plan(saw(recording_of(0x1000)))) << "frozen";
}

TEST_F(SignatureStateTest, PlannedAndEagerLearnsTheLatestSight) {
  learn(recording_of(0x1000));
  EXPECT_FALSE(state.wants_plan(saw(recording_of(0x1000)))) << "the same again";
  EXPECT_TRUE(state.wants_plan(saw(recording_of(0x2000))));
}

TEST_F(SignatureStateTest, PlannedAndEagerWithoutACollectiveKeepsThePlanAndSaysSo) {
  learn(recording_of(0x1000));
  const auto nothing = saw(Recording());
  EXPECT_FALSE(state.wants_plan(nothing));
  state.finish(nothing);
  EXPECT_EQ(state.state(), State::kPlanned);
  EXPECT_NE(state.plan(), nullptr);
  EXPECT_CONTAINS("the earlier plan stays", state.reason());
}

TEST_F(SignatureStateTest, PlannedAndCapturedFreezes) {
  learn(recording_of(0x1000));
  state.finish(captured(1, 1));
  EXPECT_EQ(state.state(), State::kFrozen);
  EXPECT_EQ(state.reason(), "");
  EXPECT_EQ(state.num_captures(), 1);
  EXPECT_EQ(state.num_launched(), 1);
}

TEST_F(SignatureStateTest, FrozenLearnsNothingFromEagerForwards) {
  learn(recording_of(0x1000));
  state.finish(captured(1, 1));
  EXPECT_FALSE(state.wants_plan(saw(recording_of(0x2000))));
  state.finish(saw(Recording()));
  EXPECT_EQ(state.state(), State::kFrozen);
  EXPECT_EQ(state.reason(), "");
}

TEST_F(SignatureStateTest, ACapturedForwardIsNotLearnedFrom) {
  auto result = captured(1, 0);
  result.recording = recording_of(0x1000);
  EXPECT_FALSE(state.wants_plan(result));
}

TEST_F(SignatureStateTest, CapturedCountDiffersIsAMismatch) {
  learn(recording_of(0x1000));
  state.finish(captured(2, 1));
  EXPECT_EQ(state.reason(), "mismatch: captured 2 collectives, learned 1");
}

TEST_F(SignatureStateTest, CapturedKindsDifferIsAMismatch) {
  learn(recording_of(0x1000));
  auto result = captured(1, 0);
  result.sequence_differs = true;
  state.finish(result);
  EXPECT_EQ(state.reason(), "mismatch: captured collectives of other kinds than learned");
}

TEST_F(SignatureStateTest, WindowsThatBecameNoNodesAreAMismatch) {
  learn(recording_of(0x1000));
  state.finish(captured(1, 0));
  EXPECT_EQ(state.reason(), "mismatch: 0 of 1 windows became nodes");
}

TEST_F(SignatureStateTest, ACaptureThatMatchesClearsAnEarlierMismatch) {
  learn(recording_of(0x1000));
  state.finish(captured(2, 1));
  state.finish(captured(1, 1));
  EXPECT_EQ(state.reason(), "");
}

TEST_F(SignatureStateTest, NoWeightAfterACollectiveIsSaid) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  learn(recording);
  EXPECT_EQ(state.reason(), "no weight was read after a collective");
  state.finish(captured(1, 0));
  EXPECT_EQ(state.reason(), "no weight was read after a collective");
}

TEST_F(SignatureStateTest, WeightsAfterSwitchedOffCollectivesOnlyAreSaid) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllGather, 0);
  recording.add_segment(weight(0x1000), 0);
  learn(recording, {.all_gather = false});
  EXPECT_CONTAINS("switched off", state.reason());
}

TEST_F(SignatureStateTest, LatchedOffKeepsTheFirstReason) {
  state.latch_off("fork failed");
  state.latch_off("join failed");
  state.finish(saw(Recording()));
  EXPECT_TRUE(state.snapshot().latched_off);
  EXPECT_EQ(state.reason(), "latched off: fork failed");
}

TEST_F(SignatureStateTest, InvalidateForgetsEverythingAndSaysSo) {
  learn(recording_of(0x1000));
  state.latch_off("fork failed");
  state.finish(captured(1, 1));
  std::ignore = state.invalidate();
  EXPECT_EQ(state.state(), State::kUnlearned);
  EXPECT_EQ(state.plan(), nullptr);
  EXPECT_EQ(state.table(), nullptr);
  EXPECT_FALSE(state.latched_off());
  EXPECT_CONTAINS("invalidated", state.reason());
}

TEST_F(SignatureStateTest, AResultFromBeforeInvalidateIsIgnored) {
  const auto stale = saw(recording_of(0x1000));
  auto stale_capture = captured(1, 0);
  std::ignore = state.invalidate();
  EXPECT_FALSE(state.wants_plan(stale));
  state.finish(stale_capture);
  EXPECT_EQ(state.state(), State::kUnlearned);
  EXPECT_EQ(state.num_captures(), 0);
}

TEST_F(SignatureStateTest, SettingsAreCarriedToTheSameWindowsOfANewPlan) {
  learn(recording_of(0x1000, 64));
  state.set_setting(0, {16, Form::kLines});
  const std::vector<WindowSetting> initial{{64, Form::kAuto}};
  EXPECT_EQ(state.carried_settings(make_plan(recording_of(0x2000, 64), {}), initial)[0],
            (WindowSetting{16, Form::kLines}));
  EXPECT_EQ(state.carried_settings(make_plan(recording_of(0x2000, 128), {}), initial), initial)
      << "a window of another size is another window";
}

TEST_F(SignatureStateTest, APinIsCarriedWithItsSettingAndNotWithoutIt) {
  learn(recording_of(0x1000, 64));
  state.pin(0);
  learn(recording_of(0x2000, 64));
  EXPECT_TRUE(state.pinned(0));
  learn(recording_of(0x2000, 128));
  EXPECT_FALSE(state.pinned(0)) << "a window of another size is another window";
}

TEST_F(SignatureStateTest, SettingsAreNotCarriedToAnotherSequence) {
  learn(recording_of(0x1000));
  state.set_setting(0, {16, Form::kLines});
  auto longer = recording_of(0x1000);
  longer.open_collective(CollectiveKind::kAllReduce, 0);
  const std::vector<WindowSetting> initial{{64, Form::kAuto}};
  EXPECT_EQ(state.carried_settings(make_plan(longer, {}), initial), initial);
}

TEST(StateWords, AreTheDocumentedOnes) {
  EXPECT_EQ(to_string(State::kUnlearned), "unlearned");
  EXPECT_EQ(to_string(State::kPlanned), "planned");
  EXPECT_EQ(to_string(State::kFrozen), "frozen");
}

}  // namespace
}  // namespace l2pf
