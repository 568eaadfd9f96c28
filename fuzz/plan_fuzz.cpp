#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "plan.h"
#include "require.h"

// Views of any shape become segments, segments a recording, the recording a plan, and its windows are cut to a budget.
namespace l2pf {
namespace {

constexpr int kMaxEvents = 64;
constexpr size_t kMaxDims = 5;
// Torch describes no storage beyond these; within them every shape and stride is allowed, sane or not.
constexpr uintptr_t kMaxAddress = uintptr_t{1} << 48;
constexpr int64_t kMaxStorageBytes = int64_t{1} << 40;

int64_t total_bytes(const std::vector<Segment>& segments) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += segment.num_bytes;
  return total;
}

bool is_aligned(const Segment& segment) {
  return segment.num_bytes > 0 && segment.address % kSegmentAlignment == 0 &&
         segment.num_bytes % kSegmentAlignment == 0;
}

int64_t any_or_small(FuzzedDataProvider& data) {
  return data.ConsumeBool() ? data.ConsumeIntegral<int64_t>() : data.ConsumeIntegralInRange<int64_t>(0, 64);
}

std::optional<Segment> segment_of_any_view(FuzzedDataProvider& data) {
  std::vector<int64_t> sizes(data.ConsumeIntegralInRange<size_t>(0, kMaxDims));
  std::vector<int64_t> strides(sizes.size());
  for (auto& size : sizes) size = std::max<int64_t>(0, any_or_small(data));
  for (auto& stride : strides) stride = any_or_small(data);
  TensorView view;
  view.storage = data.ConsumeIntegralInRange<uintptr_t>(0, kMaxAddress);
  view.storage_bytes = data.ConsumeIntegralInRange<int64_t>(0, kMaxStorageBytes);
  view.data = data.ConsumeIntegralInRange<uintptr_t>(0, kMaxAddress);
  if (data.ConsumeBool()) view.data = view.storage + view.data % 4096;
  view.element_bytes = data.ConsumeIntegralInRange<int64_t>(1, 16);
  view.sizes = sizes;
  view.strides = strides;

  const auto [kind, segment] = segment_of_view(view);
  if (kind != ViewKind::kDense) return std::nullopt;
  L2PF_REQUIRE(is_aligned(segment));
  L2PF_REQUIRE(segment.address >= view.data && segment.address >= view.storage);
  L2PF_REQUIRE(segment.end() <= view.storage + static_cast<uintptr_t>(view.storage_bytes));
  return segment;
}

// What the recording was shown after one collective, in reading order.
using Shown = std::vector<Segment>;

bool in_reading_order(const std::vector<Segment>& segments, const Shown& shown) {
  auto at = shown.begin();
  for (const Segment& segment : segments) {
    at = std::find(at, shown.end(), segment);
    if (at == shown.end()) return false;
    ++at;
  }
  return true;
}

void check_budget(const Window& window, int64_t budget_bytes) {
  const auto cut = cut_to_budget(window.segments, budget_bytes);
  const int64_t in_budget = budget_bytes < 0 ? 0 : budget_bytes & ~(kSegmentAlignment - 1);
  L2PF_REQUIRE(total_bytes(cut) == std::min(in_budget, window.num_bytes));
  L2PF_REQUIRE(cut.size() <= window.segments.size());
  for (size_t i = 0; i < cut.size(); ++i) {
    L2PF_REQUIRE(is_aligned(cut[i]));
    L2PF_REQUIRE(cut[i].address == window.segments[i].address);
    L2PF_REQUIRE(cut[i].num_bytes == window.segments[i].num_bytes || i + 1 == cut.size());
  }
}

void check_plan(const Plan& plan, const Recording& recording, const std::vector<Shown>& shown, const Shown& prologue) {
  L2PF_REQUIRE(plan.num_collectives() == recording.num_collectives());
  int64_t planned_bytes = plan.dropped_prologue_bytes + plan.switched_off_bytes + plan.evicted_bytes;
  int64_t previous_index = -1;
  for (const Window& window : plan.windows) {
    L2PF_REQUIRE(window.collective_index > previous_index);
    previous_index = window.collective_index;
    L2PF_REQUIRE(plan.window_index(window.collective_index) == &window - plan.windows.data());
    L2PF_REQUIRE(window.kind == plan.collectives[window.collective_index]);
    L2PF_REQUIRE(recording.collectives()[window.collective_index].device == plan.device);
    L2PF_REQUIRE(window.num_bytes > 0 && window.num_bytes == total_bytes(window.segments));
    for (const Segment& segment : window.segments) L2PF_REQUIRE(is_aligned(segment));
    Shown expected = shown[window.collective_index];
    if (window.collective_index + 1 == plan.num_collectives())
      expected.insert(expected.end(), prologue.begin(), prologue.end());
    L2PF_REQUIRE(in_reading_order(window.segments, expected));
    planned_bytes += window.num_bytes;
  }
  int64_t recorded_bytes = total_bytes(recording.prologue());
  for (const auto& collective : recording.collectives())
    if (collective.device == plan.device) recorded_bytes += total_bytes(collective.segments);
  L2PF_REQUIRE(planned_bytes == recorded_bytes);
}

void run(FuzzedDataProvider& data) {
  PlanOptions options;
  options.all_gather = data.ConsumeBool();
  options.back_to_back = data.ConsumeBool();
  if (data.ConsumeBool()) options.unplanned_limit_bytes = std::max<int64_t>(0, any_or_small(data));
  const int64_t budget_bytes = any_or_small(data);

  Recording recording;
  std::vector<Shown> shown;
  Shown prologue;
  for (int i = 0; i < kMaxEvents && data.remaining_bytes() > 0; ++i) {
    const DeviceIndex device = data.ConsumeIntegralInRange(0, 7) == 0 ? 1 : 0;
    switch (data.ConsumeIntegralInRange(0, 3)) {
      case 0:
        recording.open_collective(static_cast<CollectiveKind>(data.ConsumeIntegralInRange(0, 4)), device);
        shown.emplace_back();
        break;
      case 1:
        recording.add_unplanned(any_or_small(data));
        break;
      default:
        if (const auto segment = segment_of_any_view(data)) {
          recording.add_segment(*segment, device);
          (shown.empty() ? prologue : shown.back()).push_back(*segment);
        } else {
          recording.skip_view();
        }
    }
  }
  const Plan plan = make_plan(recording, options);
  check_plan(plan, recording, shown, prologue);
  for (const Window& window : plan.windows) check_budget(window, budget_bytes);
}

}  // namespace
}  // namespace l2pf

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  FuzzedDataProvider data(bytes, num_bytes);
  l2pf::run(data);
  return 0;
}
