#include <gtest/gtest.h>

#include <optional>

#include "plan.h"
#include "random.h"

// make_plan against a plain reading of the rules, weight by weight, on random forwards.
namespace l2pf {
namespace {

using testing_support::Random;

constexpr int kNumCases = 20000;

// One thing that a forward shows a recording.
struct Event {
  enum class What { kCollective, kWeight, kUnplanned } what = What::kWeight;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DeviceIndex device = 0;
  Segment segment;
  int64_t unplanned_bytes = 0;
};

std::vector<Event> random_forward(Random& random) {
  std::vector<Event> events(random.pick(0, 25));
  for (Event& event : events) {
    event.what = static_cast<Event::What>(random.pick(0, 5) < 2 ? 0 : random.one_in(5) ? 2 : 1);
    event.kind = random.one_in(3) ? CollectiveKind::kAllGather : CollectiveKind::kAllReduce;
    event.device = random.one_in(8) ? 1 : 0;
    event.segment = {static_cast<uintptr_t>(16 * random.pick(1, 20)), 16 * random.pick(1, 4), nullptr};
    event.unplanned_bytes = random.pick(0, 60);
  }
  return events;
}

Recording record(const std::vector<Event>& events) {
  Recording recording;
  for (const Event& event : events) switch (event.what) {
      case Event::What::kCollective:
        recording.open_collective(event.kind, event.device);
        break;
      case Event::What::kWeight:
        recording.add_segment(event.segment, event.device);
        break;
      case Event::What::kUnplanned:
        recording.add_unplanned(event.unplanned_bytes);
        break;
    }
  return recording;
}

bool is_inside_one_of(const std::vector<Segment>& segments, const Segment& wanted) {
  for (const Segment& segment : segments)
    if (segment.address <= wanted.address && wanted.end() <= segment.end()) return true;
  return false;
}

int64_t sum_of(const std::vector<Segment>& segments) {
  int64_t sum = 0;
  for (const Segment& segment : segments) sum += segment.num_bytes;
  return sum;
}

// What the rules say: which weights each collective's window has, and where every other byte went.
struct Expected {
  std::optional<DeviceIndex> device;
  std::vector<CollectiveKind> kinds;
  std::vector<std::vector<Segment>> segments;  // by collective; empty: no window
  std::vector<Segment> prologue;
  int64_t switched_off_bytes = 0;
  int64_t evicted_bytes = 0;
  int64_t num_other_device = 0;
};

Expected expect(const std::vector<Event>& events, const PlanOptions& options) {
  Expected expected;
  for (const Event& event : events)
    if (event.what == Event::What::kCollective && !expected.device) expected.device = event.device;

  std::vector<Segment> seen;    // after the last collective, whatever became of it
  DeviceIndex device = 0;       // of the last collective
  int64_t unplanned_bytes = 0;  // since it
  bool is_off = false;          // it gets no window by configuration
  for (const Event& event : events) {
    const bool in_prologue = expected.kinds.empty();
    if (event.what == Event::What::kCollective) {
      expected.kinds.push_back(event.kind);
      expected.segments.emplace_back();
      seen.clear();
      device = event.device;
      unplanned_bytes = 0;
      is_off = event.kind == CollectiveKind::kAllGather && !options.all_gather;
      expected.num_other_device += device != *expected.device;
    } else if (event.what == Event::What::kUnplanned) {
      unplanned_bytes += in_prologue ? 0 : event.unplanned_bytes;
    } else if (in_prologue) {
      // Without a collective nothing says which device counts.
      const bool counts = !expected.device || event.device == *expected.device;
      if (!is_inside_one_of(seen, event.segment) && counts) expected.prologue.push_back(event.segment);
      if (!is_inside_one_of(seen, event.segment)) seen.push_back(event.segment);
    } else if (event.device == device && !is_inside_one_of(seen, event.segment)) {
      seen.push_back(event.segment);
      if (device != *expected.device) continue;
      if (is_off)
        expected.switched_off_bytes += event.segment.num_bytes;
      else if (unplanned_bytes > options.unplanned_limit_bytes)
        expected.evicted_bytes += event.segment.num_bytes;
      else
        expected.segments.back().push_back(event.segment);
    }
  }
  if (options.back_to_back && expected.device && device == *expected.device && !is_off &&
      unplanned_bytes <= options.unplanned_limit_bytes) {
    auto& last = expected.segments.back();
    last.insert(last.end(), expected.prologue.begin(), expected.prologue.end());
    expected.prologue.clear();
  }
  return expected;
}

void check(const Plan& plan, const Expected& expected) {
  ASSERT_EQ(plan.collectives, expected.kinds);
  if (expected.device) ASSERT_EQ(plan.device, *expected.device);
  size_t num_windows = 0;
  for (size_t i = 0; i < expected.segments.size(); ++i) {
    const int index = plan.window_index(static_cast<int64_t>(i));
    ASSERT_EQ(index, expected.segments[i].empty() ? -1 : static_cast<int>(num_windows)) << "collective " << i;
    if (index < 0) continue;
    ++num_windows;
    const Window& window = plan.windows[index];
    ASSERT_EQ(window.collective_index, static_cast<int64_t>(i));
    ASSERT_EQ(window.kind, expected.kinds[i]);
    ASSERT_EQ(window.segments, expected.segments[i]);
    ASSERT_EQ(window.num_bytes, sum_of(window.segments));
  }
  ASSERT_EQ(plan.windows.size(), num_windows);
  ASSERT_EQ(plan.dropped_prologue_bytes, sum_of(expected.prologue));
  ASSERT_EQ(plan.switched_off_bytes, expected.switched_off_bytes);
  ASSERT_EQ(plan.evicted_bytes, expected.evicted_bytes);
  ASSERT_EQ(plan.num_other_device, expected.num_other_device);
}

TEST(PlanProperty, FollowsTheRulesWeightByWeight) {
  Random random(20261202);
  int num_windows = 0, num_evicted = 0, num_switched_off = 0, num_prologues_planned = 0;
  for (int i = 0; i < kNumCases; ++i) {
    const auto events = random_forward(random);
    PlanOptions options{.all_gather = random.one_in(2), .back_to_back = random.one_in(2)};
    if (random.one_in(2)) options.unplanned_limit_bytes = random.pick(0, 100);
    const Recording recording = record(events);
    const Plan plan = make_plan(recording, options);
    SCOPED_TRACE("case " + std::to_string(i));
    check(plan, expect(events, options));
    if (HasFatalFailure()) return;
    num_windows += !plan.windows.empty();
    num_evicted += plan.evicted_bytes > 0;
    num_switched_off += plan.switched_off_bytes > 0;
    num_prologues_planned += !recording.prologue().empty() && plan.dropped_prologue_bytes == 0;
  }
  for (const int num : {num_windows, num_evicted, num_switched_off, num_prologues_planned})
    EXPECT_GT(num, kNumCases / 50) << "the random forwards should show every case";
}

}  // namespace
}  // namespace l2pf
