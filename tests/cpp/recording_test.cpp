#include "recording.h"

#include "fake_backend.h"

namespace l2pf {
namespace {

using testing_support::weight;

TEST(Recording, WeightsBelongToTheLastCollective) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 0);
  recording.open_collective(CollectiveKind::kAllGather, 0);
  recording.add_segment(weight(0x3000), 0);
  recording.add_segment(weight(0x2000), 0);
  ASSERT_EQ(recording.num_collectives(), 2);
  EXPECT_EQ(recording.collectives()[0].segments, (std::vector{weight(0x1000)}));
  EXPECT_EQ(recording.collectives()[1].segments, (std::vector{weight(0x3000), weight(0x2000)}));
  EXPECT_EQ(recording.collectives()[1].kind, CollectiveKind::kAllGather);
}

TEST(Recording, WeightsBeforeTheFirstCollectiveAreThePrologue) {
  Recording recording;
  recording.add_segment(weight(0x1000), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  EXPECT_EQ(recording.prologue(), (std::vector{weight(0x1000)}));
  EXPECT_TRUE(recording.collectives()[0].segments.empty());
}

TEST(Recording, NestedRecordingsOfAWeightCountOnce) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000, 256), 0);
  recording.add_segment(weight(0x1000, 256), 0);
  recording.add_segment(weight(0x1040, 64), 0);
  EXPECT_EQ(recording.collectives()[0].segments, (std::vector{weight(0x1000, 256)}));
}

TEST(Recording, NestedRecordingsInThePrologueCountOnce) {
  Recording recording;
  recording.add_segment(weight(0x1000, 256), 0);
  recording.add_segment(weight(0x1000, 256), 0);
  EXPECT_EQ(recording.prologue().size(), 1u);
}

TEST(Recording, AWeightReadAfterTwoCollectivesIsInBothWindows) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 0);
  EXPECT_EQ(recording.collectives()[1].segments.size(), 1u);
}

TEST(Recording, WeightsOnAnotherDeviceThanTheCollectiveAreSkippedAndCounted) {
  Recording recording;
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_segment(weight(0x1000), 1);
  recording.add_segment(weight(0x2000), kCpu);
  EXPECT_TRUE(recording.collectives()[0].segments.empty());
  EXPECT_EQ(recording.num_skipped_views(), 2);
}

TEST(Recording, PrologueWeightsOnAnotherDeviceThanTheFirstCollectiveAreSkippedAndCounted) {
  Recording recording;
  recording.add_segment(weight(0x1000), kCpu);
  recording.add_segment(weight(0x2000), 0);
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  EXPECT_EQ(recording.prologue(), (std::vector{weight(0x2000)}));
  EXPECT_EQ(recording.num_skipped_views(), 1);
}

TEST(Recording, SkippedViewsAreCounted) {
  Recording recording;
  recording.skip_view();
  EXPECT_EQ(recording.num_skipped_views(), 1);
}

TEST(Recording, UnplannedBytesAreKeptByTheSegmentsBeforeThem) {
  Recording recording;
  recording.add_unplanned(1);  // before the first collective: no window it could end
  recording.open_collective(CollectiveKind::kAllReduce, 0);
  recording.add_unplanned(2);
  recording.add_segment(weight(0x1000), 0);
  recording.add_unplanned(3);
  recording.add_unplanned(0);
  EXPECT_EQ(recording.collectives()[0].unplanned, (std::vector<std::pair<size_t, int64_t>>{{0, 2}, {1, 3}}));
}

TEST(Recording, EqualWhenTheSameWasSeenWhoeverOwnsTheMemory) {
  const auto make = [](uintptr_t address) {
    Recording recording;
    recording.open_collective(CollectiveKind::kAllReduce, 0);
    recording.add_segment(weight(address), 0);
    return recording;
  };
  EXPECT_EQ(make(0x1000), make(0x1000));
  EXPECT_FALSE(make(0x1000) == make(0x2000));
}

TEST(Recording, DiffersByKindAndByDevice) {
  Recording reduce, gather, elsewhere;
  reduce.open_collective(CollectiveKind::kAllReduce, 0);
  gather.open_collective(CollectiveKind::kAllGather, 0);
  elsewhere.open_collective(CollectiveKind::kAllReduce, 1);
  EXPECT_FALSE(reduce == gather);
  EXPECT_FALSE(reduce == elsewhere);
}

}  // namespace
}  // namespace l2pf
