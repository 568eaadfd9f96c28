#include "recording.h"

#include <algorithm>

namespace l2pf {

void Recording::open_collective(CollectiveKind kind, DeviceIndex device) {
  collectives_.push_back({kind, device, {}});
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
  if (!known) segments.push_back(segment);
}

}  // namespace l2pf
