#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "segment.h"
#include "words.h"

namespace l2pf {

// The weights read between one collective and the next, in reading order.
struct RecordedCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DeviceIndex device = kCpu;
  std::vector<Segment> segments;
  // Bytes that the forward read and no window plans, by the number of segments recorded before them.
  std::vector<std::pair<size_t, int64_t>> unplanned;

  friend bool operator==(const RecordedCollective&, const RecordedCollective&) = default;
};

// What one eager forward showed: its collectives in order and the weights read after each.
class Recording {
 public:
  void open_collective(CollectiveKind kind, DeviceIndex device);

  // Adds a weight after the last collective, or to the prologue before the first. A range already recorded in
  // the same window is not added again: wrappers nest, and a line needs to come only once.
  void add_segment(const Segment& segment, DeviceIndex device);
  void skip_view() { ++num_skipped_views_; }
  // The forward now reads `num_bytes` that no window plans: routed experts, a KV cache.
  void add_unplanned(int64_t num_bytes);

  const std::vector<RecordedCollective>& collectives() const { return collectives_; }
  const std::vector<Segment>& prologue() const { return prologue_; }
  int64_t num_collectives() const { return static_cast<int64_t>(collectives_.size()); }
  int64_t num_skipped_views() const { return num_skipped_views_; }

  // Equal recordings make equal plans.
  friend bool operator==(const Recording&, const Recording&) = default;

 private:
  std::vector<RecordedCollective> collectives_;
  std::vector<Segment> prologue_;
  std::vector<DeviceIndex> prologue_devices_;  // until the first collective says which of them counts
  int64_t num_skipped_views_ = 0;
};

}  // namespace l2pf
