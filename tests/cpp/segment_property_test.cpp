#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "segment.h"

// segment_of_view against brute force: the bytes of every element, one by one, on small random views.
namespace l2pf {
namespace {

struct RandomView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  TensorView view;
};

class Views {
 public:
  RandomView next() {
    RandomView made;
    const int num_dims = pick(0, 4);
    for (int i = 0; i < num_dims; ++i) made.sizes.push_back(pick(0, 30) == 0 ? 0 : pick(1, 5));
    // Half of them dense in a random order of dimensions, now and then with one stride bent.
    if (pick(0, 1) == 0) {
      made.strides = permuted_contiguous(made.sizes);
      if (num_dims > 0 && pick(0, 2) == 0) made.strides[pick(0, num_dims - 1)] = pick(0, 6);
    } else {
      for (int i = 0; i < num_dims; ++i) made.strides.push_back(pick(0, 7));
    }
    made.view.element_bytes = int64_t{1} << pick(0, 4);
    made.view.storage = 0x10000 + static_cast<uintptr_t>(pick(0, 3) == 0 ? pick(0, 40) : 64 * pick(0, 4));
    made.view.data = made.view.storage + static_cast<uintptr_t>(pick(0, 20) * made.view.element_bytes);
    made.view.storage_bytes = pick(0, 3) == 0 ? pick(0, 200) : 1 << 20;
    return made;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  std::vector<int64_t> permuted_contiguous(const std::vector<int64_t>& sizes) {
    std::vector<size_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (const size_t i : order) {
      strides[i] = stride;
      stride *= std::max<int64_t>(1, sizes[i]);
    }
    return strides;
  }

  std::mt19937 random_{20260925};
};

std::set<int64_t> element_offsets(const RandomView& v) {
  std::set<int64_t> offsets{0};
  for (size_t i = 0; i < v.sizes.size(); ++i) {
    std::set<int64_t> wider;
    for (const int64_t offset : offsets)
      for (int64_t k = 0; k < v.sizes[i]; ++k) wider.insert(offset + k * v.strides[i]);
    offsets = std::move(wider);
  }
  return offsets;
}

bool gap_free(const std::set<int64_t>& offsets) {
  return offsets.empty() || *offsets.rbegin() + 1 == static_cast<int64_t>(offsets.size());
}

// The 16-byte granules that lie in the storage and whose every byte belongs to an element.
std::vector<uintptr_t> whole_granules(const TensorView& view, const std::set<int64_t>& offsets) {
  std::set<uintptr_t> bytes;
  for (const int64_t offset : offsets)
    for (int64_t k = 0; k < view.element_bytes; ++k) {
      const uintptr_t byte = view.data + static_cast<uintptr_t>(offset * view.element_bytes + k);
      if (byte < view.storage + static_cast<uintptr_t>(view.storage_bytes)) bytes.insert(byte);
    }
  std::vector<uintptr_t> granules;
  for (const uintptr_t byte : bytes) {
    if (byte % kSegmentAlignment != 0) continue;
    bool whole = true;
    for (uintptr_t k = 0; k < kSegmentAlignment; ++k) whole = whole && bytes.contains(byte + k);
    if (whole) granules.push_back(byte);
  }
  return granules;
}

TEST(SegmentProperty, IsExactlyTheWholeGranulesOfAGapFreeView) {
  Views views;
  int num_of_kind[3] = {};
  for (int round = 0; round < 20000; ++round) {
    auto made = views.next();
    made.view.sizes = made.sizes;
    made.view.strides = made.strides;
    const ViewSegment got = segment_of_view(made.view);
    ++num_of_kind[static_cast<int>(got.kind)];
    SCOPED_TRACE("round " + std::to_string(round) + ", sizes " + ::testing::PrintToString(made.sizes) + ", strides " +
                 ::testing::PrintToString(made.strides));

    const auto offsets = element_offsets(made);
    ASSERT_EQ(got.kind != ViewKind::kNotDense, gap_free(offsets));
    if (got.kind == ViewKind::kNotDense) continue;
    const auto granules = whole_granules(made.view, offsets);
    ASSERT_EQ(got.kind == ViewKind::kDense, !granules.empty());
    if (granules.empty()) continue;
    ASSERT_EQ(got.segment.address, granules.front());
    ASSERT_EQ(got.segment.end(), granules.back() + kSegmentAlignment);
    ASSERT_EQ(got.segment.num_bytes, static_cast<int64_t>(granules.size()) * kSegmentAlignment);
  }
  for (const int num : num_of_kind) EXPECT_GT(num, 1000) << "the random views should show every kind";
}

TEST(CutToBudgetProperty, IsThePrefixOfTheBudget) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 10000; ++round) {
    std::vector<Segment> segments;
    int64_t total = 0;
    for (int i = pick(0, 5); i > 0; --i) {
      segments.push_back({static_cast<uintptr_t>(16 * pick(1, 1000)), 16 * pick(1, 8), nullptr});
      total += segments.back().num_bytes;
    }
    const int64_t budget = pick(-20, 700);
    const auto cut = cut_to_budget(segments, budget);
    int64_t cut_bytes = 0;
    for (size_t i = 0; i < cut.size(); ++i) {
      ASSERT_EQ(cut[i].address, segments[i].address);
      ASSERT_TRUE(cut[i].num_bytes > 0 && cut[i].num_bytes % kSegmentAlignment == 0);
      if (i + 1 < cut.size()) {
        ASSERT_EQ(cut[i], segments[i]);
      }
      cut_bytes += cut[i].num_bytes;
    }
    ASSERT_EQ(cut_bytes, std::min(total, std::max<int64_t>(0, budget) / kSegmentAlignment * kSegmentAlignment));
  }
}

}  // namespace
}  // namespace l2pf
