#include "recording.h"

#include <algorithm>

namespace l2pf {

void Recording::open_collective(CollectiveKind kind, DeviceIndex device) {
  if (collectives_.empty()) {
    const auto prologue = std::exchange(prologue_, {});
    for (size_t i = 0; i < prologue.size(); ++i)
      prologue_devices_[i] == device ? prologue_.push_back(prologue[i]) : skip_view();
    prologue_devices_.clear();
  }
  collectives_.push_back({kind, device, {}, {}});
}

void Recording::add_segment(const Segment& segment, DeviceIndex device) {
  // A window is launched on its collective's device and can only bring that device's memory.
  if (!collectives_.empty() && collectives_.back().device != device) {
    skip_view();
    return;
  }
  auto& segments = collectives_.empty() ? prologue_ : collectives_.back().segments;
  const bool known =
      std::any_of(segments.begin(), segments.end(), [&](const Segment& s) { return s.contains(segment); });
  if (known) return;
  segments.push_back(segment);
  if (collectives_.empty()) prologue_devices_.push_back(device);
}

void Recording::add_unplanned(int64_t num_bytes) {
  if (collectives_.empty() || num_bytes <= 0) return;
  auto& last = collectives_.back();
  last.unplanned.emplace_back(last.segments.size(), num_bytes);
}

}  // namespace l2pf
