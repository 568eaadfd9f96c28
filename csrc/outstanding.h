#pragma once

#include <mutex>
#include <set>
#include <utility>

#include "backend.h"

namespace l2pf {

// Keeps the invariant "at most one outstanding prefetch": per device in eager code, per capture while capturing.
// A prefetch that an eager stream started is never waited for inside a capture: CUDA forbids it.
class Outstanding {
 public:
  static Outstanding& of(Backend& backend);

  // Joins an eager predecessor, then forks. Throws BackendError; the prefetch then still counts as outstanding,
  // so that whatever was started is joined.
  void fork(const Prefetch& prefetch, const Place& place);
  // The backend orders the new node behind the capture's previous one, so that it alone is outstanding.
  void attach(const Prefetch& prefetch, Placement placement, const Place& place, uint64_t capture_id);
  // No-op when nothing is outstanding there.
  void join(const Place& place, uint64_t capture_id);
  // The capture has ended: its nodes belong to the graph, and there is nothing left to join them in.
  void forget_capture(DeviceIndex device, uint64_t capture_id);

  // Eager code alone: what a capture never joined belongs to its graph.
  bool in_eager(DeviceIndex device) const;
  bool any(DeviceIndex device) const;

 private:
  explicit Outstanding(Backend& backend) : backend_(backend) {}
  void join_locked(const Place& place, uint64_t capture_id);

  Backend& backend_;
  mutable std::mutex mutex_;
  std::set<std::pair<DeviceIndex, uint64_t>> pending_;
};

}  // namespace l2pf
