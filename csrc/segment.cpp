#include "segment.h"

#include <algorithm>
#include <utility>

namespace l2pf {
namespace {

// Number of elements of the gap-free range that a view touches, or -1 when it has holes or no memory is that large.
// Order of dimensions does not matter (w.t() is dense); elements that are seen twice (broadcast, overlapping rows)
// count once.
int64_t dense_num_elements(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // {stride, size}
  dims.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    if (sizes[i] > 1) dims.emplace_back(strides[i], sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t num_elements = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < 0 || stride > num_elements) return -1;
    int64_t step = 0;
    if (__builtin_mul_overflow(stride, size - 1, &step) || __builtin_add_overflow(num_elements, step, &num_elements))
      return -1;
  }
  return num_elements;
}

}  // namespace

std::optional<Segment> align_inwards(uintptr_t address, int64_t num_bytes) {
  constexpr uintptr_t mask = kSegmentAlignment - 1;
  if (num_bytes <= 0) return std::nullopt;
  const uintptr_t begin = (address + mask) & ~mask;
  const uintptr_t end = (address + static_cast<uintptr_t>(num_bytes)) & ~mask;
  if (begin >= end) return std::nullopt;
  return Segment{begin, static_cast<int64_t>(end - begin), nullptr};
}

std::vector<Segment> cut_to_budget(const std::vector<Segment>& segments, int64_t budget_bytes) {
  std::vector<Segment> cut;
  int64_t left = budget_bytes & ~(kSegmentAlignment - 1);
  for (const Segment& segment : segments) {
    if (left <= 0) break;
    cut.push_back(segment);
    cut.back().num_bytes = std::min(segment.num_bytes, left);
    left -= cut.back().num_bytes;
  }
  return cut;
}

ViewSegment segment_of_view(const TensorView& view) {
  const int64_t num_elements = dense_num_elements(view.sizes, view.strides);
  if (num_elements < 0) return {ViewKind::kNotDense, {}};
  if (num_elements == 0 || view.data == 0) return {ViewKind::kEmpty, {}};
  int64_t num_bytes = 0;
  if (__builtin_mul_overflow(num_elements, view.element_bytes, &num_bytes)) return {ViewKind::kNotDense, {}};
  const uintptr_t begin = std::max(view.data, view.storage);
  const uintptr_t end = std::min(view.data + static_cast<uintptr_t>(num_bytes),
                                 view.storage + static_cast<uintptr_t>(view.storage_bytes));
  if (begin >= end) return {ViewKind::kEmpty, {}};
  const auto segment = align_inwards(begin, static_cast<int64_t>(end - begin));
  if (!segment) return {ViewKind::kEmpty, {}};
  return {ViewKind::kDense, *segment};
}

}  // namespace l2pf
