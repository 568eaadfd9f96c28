#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace l2pf {

// A device index the way torch counts: -1 is the CPU, 0.. are CUDA devices.
using DeviceIndex = int;
inline constexpr DeviceIndex kCpu = -1;

// Both ends of a segment are multiples of this: the bulk hint faults on anything less.
inline constexpr int64_t kSegmentAlignment = 16;

// One dense range of weight memory. `owner` keeps the memory mapped for as long as something may read it, unless the
// owner itself was emptied (a storage resized to nothing): `backed_by_owner`, where there is one, tells.
struct Segment {
  uintptr_t address = 0;
  int64_t num_bytes = 0;
  std::shared_ptr<const void> owner;
  bool (*backed_by_owner)(const Segment&) = nullptr;

  bool is_backed() const { return !backed_by_owner || backed_by_owner(*this); }
  uintptr_t end() const { return address + static_cast<uintptr_t>(num_bytes); }
  bool contains(const Segment& other) const { return address <= other.address && other.end() <= end(); }
  friend bool operator==(const Segment& a, const Segment& b) {
    return a.address == b.address && a.num_bytes == b.num_bytes;
  }
};

// What a tensor says of itself, free of torch. `data` already includes the storage offset.
struct TensorView {
  uintptr_t data = 0;
  int64_t element_bytes = 0;
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
  uintptr_t storage = 0;
  int64_t storage_bytes = 0;
};

enum class ViewKind {
  kDense,     // one dense range
  kEmpty,     // no element, or nothing left after aligning inwards
  kNotDense,  // holes: prefetching the hull would read bytes that the consumer does not
};

struct ViewSegment {
  ViewKind kind = ViewKind::kEmpty;
  Segment segment;  // without an owner; meaningful when kind is kDense
};

// The range that `view` really touches, cut to its storage and aligned inwards to kSegmentAlignment.
ViewSegment segment_of_view(const TensorView& view);

// Shrinks [address, address + num_bytes) to aligned ends; nothing when no aligned byte is left.
std::optional<Segment> align_inwards(uintptr_t address, int64_t num_bytes);

// The first `budget_bytes` of `segments`, in order, in whole multiples of kSegmentAlignment.
std::vector<Segment> cut_to_budget(const std::vector<Segment>& segments, int64_t budget_bytes);

}  // namespace l2pf
