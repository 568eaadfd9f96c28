#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "recording.h"

namespace l2pf {

struct PlanOptions {
  bool all_gather = true;     // false: all-gathers are numbered but get no window
  bool back_to_back = false;  // true: forwards follow each other, so the prologue is read after the last collective
  // A window ends where the forward has read this much that is not planned: what comes after would be evicted before
  // it is used. Half of L2 on a device that is known; no limit otherwise.
  int64_t unplanned_limit_bytes = std::numeric_limits<int64_t>::max();
};

struct Window {
  int64_t collective_index = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<Segment> segments;  // in reading order, not cut to a budget: budgets change without a new plan
  int64_t num_bytes = 0;          // of all segments

  // False once a storage that is held was emptied or moved: prefetching it could fault.
  bool is_backed() const;
};

// Immutable on the host; a table is its device copy.
struct Plan {
  DeviceIndex device = kCpu;
  std::vector<CollectiveKind> collectives;  // kinds in order: what a later forward must show again
  std::vector<Window> windows;              // by rising collective_index; only collectives that have weights
  int64_t dropped_prologue_bytes = 0;
  int64_t switched_off_bytes = 0;  // of weights read after all-gathers that get no window
  int64_t evicted_bytes = 0;       // of weights left out because too much is read before them
  int64_t num_other_device = 0;    // collectives on another device than the first one: they get no window

  // Whether every window is.
  bool is_backed() const;
  int64_t num_collectives() const { return static_cast<int64_t>(collectives.size()); }
  // Position in `windows`, or -1.
  int window_index(int64_t collective_index) const;
};

Plan make_plan(const Recording& recording, const PlanOptions& options);

}  // namespace l2pf
