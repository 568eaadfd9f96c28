#include "plan.h"

#include <algorithm>
#include <optional>

namespace l2pf {
namespace {

int64_t total_bytes(const std::vector<Segment>& segments) {
  int64_t total = 0;
  for (const auto& segment : segments) total += segment.num_bytes;
  return total;
}

// Position of the first segment that is read after more than `limit_bytes` went through L2 unplanned; nothing when so
// much never does.
std::optional<size_t> first_evicted(const RecordedCollective& collective, int64_t limit_bytes) {
  int64_t left_bytes = limit_bytes;
  for (const auto& [num_segments, num_bytes] : collective.unplanned) {
    if (num_bytes > left_bytes) return num_segments;
    left_bytes -= num_bytes;
  }
  return std::nullopt;
}

}  // namespace

bool Window::is_backed() const {
  return std::all_of(segments.begin(), segments.end(), [](const Segment& segment) { return segment.is_backed(); });
}

bool Plan::is_backed() const {
  return std::all_of(windows.begin(), windows.end(), [](const Window& window) { return window.is_backed(); });
}

int Plan::window_index(int64_t collective_index) const {
  const auto it = std::lower_bound(windows.begin(), windows.end(), collective_index,
                                   [](const Window& w, int64_t index) { return w.collective_index < index; });
  if (it == windows.end() || it->collective_index != collective_index) return -1;
  return static_cast<int>(it - windows.begin());
}

Plan make_plan(const Recording& recording, const PlanOptions& options) {
  Plan plan;
  const auto& collectives = recording.collectives();
  plan.dropped_prologue_bytes = total_bytes(recording.prologue());
  if (collectives.empty()) return plan;

  plan.device = collectives.front().device;
  for (size_t i = 0; i < collectives.size(); ++i) {
    const auto& collective = collectives[i];
    plan.collectives.push_back(collective.kind);
    if (collective.device != plan.device) {
      ++plan.num_other_device;
      continue;
    }
    if (collective.kind == CollectiveKind::kAllGather && !options.all_gather) {
      plan.switched_off_bytes += total_bytes(collective.segments);
      continue;
    }
    auto segments = collective.segments;
    const auto evicted_from = first_evicted(collective, options.unplanned_limit_bytes);
    if (evicted_from) segments.resize(*evicted_from);
    plan.evicted_bytes += total_bytes(collective.segments) - total_bytes(segments);
    if (options.back_to_back && !evicted_from && i + 1 == collectives.size()) {
      segments.insert(segments.end(), recording.prologue().begin(), recording.prologue().end());
      plan.dropped_prologue_bytes = 0;
    }
    const int64_t num_bytes = total_bytes(segments);
    if (num_bytes > 0)
      plan.windows.push_back({static_cast<int64_t>(i), collective.kind, std::move(segments), num_bytes});
  }
  return plan;
}

}  // namespace l2pf
