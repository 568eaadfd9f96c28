#include "segment.h"

#include <gtest/gtest.h>

#include <limits>

namespace l2pf {
namespace {

constexpr uintptr_t kStorage = 0x10000;
constexpr int64_t kStorageBytes = 1 << 20;

struct Case {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t element_bytes = 2;
  int64_t offset_elements = 0;
  uintptr_t storage = kStorage;
  int64_t storage_bytes = kStorageBytes;
};

ViewSegment covered(const Case& c) {
  return segment_of_view({c.storage + static_cast<uintptr_t>(c.offset_elements * c.element_bytes), c.element_bytes,
                          c.sizes, c.strides, c.storage, c.storage_bytes});
}

void expect_dense(const ViewSegment& view, uintptr_t address, int64_t num_bytes) {
  ASSERT_EQ(view.kind, ViewKind::kDense);
  EXPECT_EQ(view.segment.address, address);
  EXPECT_EQ(view.segment.num_bytes, num_bytes);
}

TEST(SegmentOfView, ContiguousIsItsWholeRange) { expect_dense(covered({{64, 32}, {32, 1}}), kStorage, 64 * 32 * 2); }

TEST(SegmentOfView, TransposedIsDense) { expect_dense(covered({{32, 64}, {1, 32}}), kStorage, 64 * 32 * 2); }

TEST(SegmentOfView, PermutedThreeDimensionsAreDense) {
  expect_dense(covered({{4, 8, 16}, {8, 1, 32}}), kStorage, 4 * 8 * 16 * 2);
}

TEST(SegmentOfView, RowSliceIsDenseFromItsOffset) {
  expect_dense(covered({.sizes = {16, 32}, .strides = {32, 1}, .offset_elements = 8 * 32}), kStorage + 8 * 32 * 2,
               16 * 32 * 2);
}

TEST(SegmentOfView, ColumnSliceHasHoles) { EXPECT_EQ(covered({{64, 16}, {32, 1}}).kind, ViewKind::kNotDense); }

TEST(SegmentOfView, EverySecondElementHasHoles) { EXPECT_EQ(covered({{64}, {2}}).kind, ViewKind::kNotDense); }

TEST(SegmentOfView, BroadcastAddsNoBytes) { expect_dense(covered({{100, 32}, {0, 1}}), kStorage, 32 * 2); }

TEST(SegmentOfView, OverlappingRowsWithoutGapAreDense) {
  expect_dense(covered({{4, 16}, {8, 1}}), kStorage, (3 * 8 + 16) * 2);
}

TEST(SegmentOfView, StrideOfASizeOneDimensionIsMeaningless) {
  expect_dense(covered({{1, 32}, {777, 1}}), kStorage, 32 * 2);
}

TEST(SegmentOfView, ScalarHoldsNoAlignedByte) { EXPECT_EQ(covered({{}, {}}).kind, ViewKind::kEmpty); }

TEST(SegmentOfView, ScalarOfSixteenBytesIsDense) {
  expect_dense(covered({.sizes = {}, .strides = {}, .element_bytes = 16}), kStorage, 16);
}

TEST(SegmentOfView, ZeroElementsAreEmptyWhateverTheStrides) {
  EXPECT_EQ(covered({{0, 32}, {32, 1}}).kind, ViewKind::kEmpty);
  EXPECT_EQ(covered({{64, 0}, {5, 3}}).kind, ViewKind::kEmpty);
}

TEST(SegmentOfView, NullDataIsEmpty) {
  const std::vector<int64_t> sizes{64};
  const std::vector<int64_t> strides{1};
  EXPECT_EQ(segment_of_view({0, 2, sizes, strides, 0, 128}).kind, ViewKind::kEmpty);
}

TEST(SegmentOfView, MisalignedAddressIsAlignedInwards) {
  expect_dense(covered({.sizes = {100}, .strides = {1}, .element_bytes = 1, .offset_elements = 3}), kStorage + 16, 80);
}

TEST(SegmentOfView, TooShortForAnAlignedByteIsEmpty) {
  EXPECT_EQ(covered({.sizes = {30}, .strides = {1}, .element_bytes = 1, .offset_elements = 1}).kind, ViewKind::kEmpty);
}

TEST(SegmentOfView, RangePastTheStorageIsCut) {
  expect_dense(covered({.sizes = {1000}, .strides = {1}, .storage_bytes = 100}), kStorage, 96);
}

TEST(SegmentOfView, RangeOutsideTheStorageIsEmpty) {
  EXPECT_EQ(covered({.sizes = {64}, .strides = {1}, .offset_elements = 50, .storage_bytes = 100}).kind,
            ViewKind::kEmpty);
}

TEST(SegmentOfView, DataBeforeTheStorageIsCut) {
  expect_dense(covered({.sizes = {64}, .strides = {1}, .offset_elements = -16}), kStorage, 96);
}

TEST(AlignInwards, KeepsWhatIsAligned) { EXPECT_EQ(align_inwards(32, 64), (Segment{32, 64, nullptr})); }

TEST(AlignInwards, ShrinksBothEnds) { EXPECT_EQ(align_inwards(33, 64), (Segment{48, 48, nullptr})); }

TEST(AlignInwards, NothingLeftIsNothing) {
  EXPECT_EQ(align_inwards(33, 30), std::nullopt);
  EXPECT_EQ(align_inwards(32, 0), std::nullopt);
  EXPECT_EQ(align_inwards(32, -16), std::nullopt);
}

TEST(CutToBudget, KeepsReadingOrderAndShortensTheLastChunk) {
  const std::vector<Segment> segments{{0x300, 64, nullptr}, {0x100, 64, nullptr}, {0x200, 64, nullptr}};
  EXPECT_EQ(cut_to_budget(segments, 96), (std::vector<Segment>{{0x300, 64, nullptr}, {0x100, 32, nullptr}}));
}

TEST(SegmentOfView, LargerThanAnyMemoryIsNotDense) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(covered({{kHuge, kHuge}, {1, kHuge}}).kind, ViewKind::kNotDense) << "num_elements overflows";
  EXPECT_EQ(covered({{kHuge}, {1}}).kind, ViewKind::kNotDense) << "num_bytes overflows";
}

TEST(SegmentOfView, ANegativeStrideIsNotDense) { EXPECT_EQ(covered({{4}, {-1}}).kind, ViewKind::kNotDense); }

TEST(CutToBudget, RoundsTheBudgetDownToTheAlignment) {
  EXPECT_EQ(cut_to_budget({{0x100, 64, nullptr}}, 47), (std::vector<Segment>{{0x100, 32, nullptr}}));
}

TEST(CutToBudget, EndsExactlyAtASegmentWithoutAnEmptyOne) {
  EXPECT_EQ(cut_to_budget({{0x100, 64, nullptr}, {0x200, 64, nullptr}}, 64),
            (std::vector<Segment>{{0x100, 64, nullptr}}));
}

TEST(CutToBudget, AboveTheWindowKeepsAll) { EXPECT_EQ(cut_to_budget({{0x100, 64, nullptr}}, 6 << 20).size(), 1u); }

TEST(CutToBudget, NothingOrLessIsNothing) {
  EXPECT_TRUE(cut_to_budget({{0x100, 64, nullptr}}, 0).empty());
  EXPECT_TRUE(cut_to_budget({{0x100, 64, nullptr}}, 15).empty());
  EXPECT_TRUE(cut_to_budget({{0x100, 64, nullptr}}, -1).empty());
}

TEST(CutToBudget, KeepsTheOwners) {
  const auto owner = std::make_shared<int>(0);
  EXPECT_EQ(cut_to_budget({{0x100, 64, owner}}, 32)[0].owner, owner);
}

}  // namespace
}  // namespace l2pf
