#include "plan.h"

#include "fake_backend.h"

namespace l2pf {
namespace {

using testing_support::weight;

Recording three_collectives() {
  Recording recording;
  recording.add_segment(weight(0x100, 32), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x2000), 0);
  recording.add_segment(weight(0x1000), 0);
  recording.open_collective(CollectiveKind::kAllGather, 0);
  recording.add_segment(weight(0x3000), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  return recording;
}

TEST(Plan, OneWindowForEachCollectiveThatHasWeightsInReadingOrder) {
  const Plan plan = make_plan(three_collectives(), {});
  ASSERT_EQ(plan.windows.size(), 2u);
  EXPECT_EQ(plan.windows[0].collective_index, 0);
  EXPECT_EQ(plan.windows[0].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(plan.windows[0].segments, (std::vector{weight(0x2000), weight(0x1000)}));
  EXPECT_EQ(plan.windows[0].num_bytes, 128);
  EXPECT_EQ(plan.windows[1].collective_index, 1);
  EXPECT_EQ(plan.device, 0);
}

TEST(Plan, WindowIndexFindsWindowsOnly) {
  const Plan plan = make_plan(three_collectives(), {});
  EXPECT_EQ(plan.window_index(0), 0);
  EXPECT_EQ(plan.window_index(1), 1);
  EXPECT_EQ(plan.window_index(2), -1);
  EXPECT_EQ(plan.window_index(3), -1);
  EXPECT_EQ(plan.window_index(-1), -1);
}

TEST(Plan, AllGatherSwitchedOffHasNoWindowAndKeepsItsNumber) {
  const Plan plan = make_plan(three_collectives(), {.all_gather = false});
  ASSERT_EQ(plan.windows.size(), 1u);
  EXPECT_EQ(plan.windows[0].collective_index, 0);
  EXPECT_EQ(plan.num_collectives(), 3);
  EXPECT_EQ(plan.collectives[1], CollectiveKind::kAllGather);
}

TEST(Plan, PrologueIsDroppedByName) {
  const Plan plan = make_plan(three_collectives(), {});
  EXPECT_EQ(plan.dropped_prologue_bytes, 32);
  for (const auto& window : plan.windows)
    for (const auto& segment : window.segments) EXPECT_NE(segment.address, 0x100u);
}

TEST(Plan, PrologueBelongsToTheLastWindowOfForwardsBackToBack) {
  auto recording = three_collectives();
  recording.add_segment(weight(0x4000), 0);
  const Plan plan = make_plan(recording, {.back_to_back = true});
  EXPECT_EQ(plan.dropped_prologue_bytes, 0);
  EXPECT_EQ(plan.windows.back().collective_index, 2);
  EXPECT_EQ(plan.windows.back().segments, (std::vector{weight(0x4000), weight(0x100, 32)}));
  EXPECT_EQ(plan.windows.back().num_bytes, 96);
}

TEST(Plan, PrologueAloneMakesAWindowOfForwardsBackToBack) {
  const Plan plan = make_plan(three_collectives(), {.back_to_back = true});
  EXPECT_EQ(plan.windows.back().collective_index, 2);
  EXPECT_EQ(plan.windows.back().segments, (std::vector{weight(0x100, 32)}));
}

TEST(Plan, PrologueIsDroppedWhenTheLastCollectiveIsSwitchedOff) {
  Recording recording;
  recording.add_segment(weight(0x100, 32), 0);
  recording.open_collective(CollectiveKind::kAllGather, 0);
  const Plan plan = make_plan(recording, {.all_gather = false, .back_to_back = true});
  EXPECT_TRUE(plan.windows.empty());
  EXPECT_EQ(plan.dropped_prologue_bytes, 32);
}

TEST(Plan, PrologueOnAnotherDeviceNeverEntersAWindow) {
  Recording recording;
  recording.add_segment(weight(0x100, 32), kCpu);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  EXPECT_TRUE(make_plan(recording, {.back_to_back = true}).windows.empty());
}

TEST(Plan, CollectivesOnAnotherDeviceThanTheFirstGetNoWindow) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 1);
  recording.add_segment(weight(0x1000), 1);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x2000), 0);
  const Plan plan = make_plan(recording, {});
  EXPECT_EQ(plan.device, 1);
  EXPECT_EQ(plan.windows.size(), 1u);
  EXPECT_EQ(plan.num_other_device, 1);
  EXPECT_EQ(plan.num_collectives(), 2);
}

TEST(Plan, AWindowEndsWhereTooMuchUnplannedWasRead) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 0);
  recording.add_unplanned(60);
  recording.add_segment(weight(0x2000), 0);
  recording.add_unplanned(41);
  recording.add_segment(weight(0x3000), 0);
  EXPECT_EQ(make_plan(recording, {.unplanned_limit_bytes = 101}).windows[0].num_bytes, 192);
  const Plan cut = make_plan(recording, {.unplanned_limit_bytes = 100});
  EXPECT_EQ(cut.windows[0].segments, (std::vector{weight(0x1000), weight(0x2000)}));
  EXPECT_EQ(cut.windows[0].num_bytes, 128);
  EXPECT_EQ(cut.evicted_bytes, 64);
}

TEST(Plan, UnplannedReadsOfAnySizeAddUpToTooMuch) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_unplanned(std::numeric_limits<int64_t>::max());
  recording.add_unplanned(std::numeric_limits<int64_t>::max());
  recording.add_segment({0x1000, 64, nullptr}, 0);
  EXPECT_TRUE(make_plan(recording, {}).windows.empty());
}

TEST(Plan, PrologueIsDroppedWhenTooMuchUnplannedIsReadBeforeIt) {
  Recording recording;
  recording.add_segment(weight(0x100, 32), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 0);
  recording.add_unplanned(101);
  const Plan plan = make_plan(recording, {.back_to_back = true, .unplanned_limit_bytes = 100});
  EXPECT_EQ(plan.windows[0].segments, (std::vector{weight(0x1000)}));
  EXPECT_EQ(plan.dropped_prologue_bytes, 32);
}

TEST(Plan, NoCollectiveMakesNoWindow) {
  Recording recording;
  recording.add_segment(weight(0x1000), 0);
  const Plan plan = make_plan(recording, {.back_to_back = true});
  EXPECT_TRUE(plan.windows.empty());
  EXPECT_EQ(plan.num_collectives(), 0);
  EXPECT_EQ(plan.dropped_prologue_bytes, 64);
}

TEST(Plan, HoldsTheWeights) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  auto owned = weight(0x1000);
  const std::weak_ptr<const void> owner = owned.owner;
  recording.add_segment(owned, 0);
  owned.owner.reset();
  auto plan = std::make_unique<Plan>(make_plan(recording, {}));
  recording = {};
  EXPECT_FALSE(owner.expired());
  plan.reset();
  EXPECT_TRUE(owner.expired());
}

}  // namespace
}  // namespace l2pf
