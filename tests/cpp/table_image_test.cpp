#include "cuda/table_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "random.h"

// The bytes that a kernel reads, read back as a kernel reads them.
namespace l2pf {
namespace {

using testing_support::Random;

template <typename T>
T read(const std::vector<char>& bytes, size_t offset) {
  T value;
  EXPECT_LE(offset + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

Plan random_plan(Random& random) {
  Plan plan;
  plan.windows.resize(random.pick(0, 6));
  for (Window& window : plan.windows) {
    window.segments.resize(random.one_in(10) ? random.pick(60, 140) : random.pick(1, 8));
    for (Segment& segment : window.segments) {
      segment = {static_cast<uintptr_t>(16 * random.pick(1, int64_t{1} << 40)), 16 * random.pick(1, 1 << 24), nullptr};
      window.num_bytes += segment.num_bytes;
    }
  }
  return plan;
}

WindowHeader random_header(Random& random) {
  return {random.pick(0, int64_t{1} << 40),
          static_cast<int16_t>(random.pick(1, 4)),
          static_cast<int16_t>(random.pick(1, kMaxLoadsInFlight)),
          static_cast<int32_t>(random.pick(1, 264)),
          static_cast<int32_t>(16 * random.pick(1, 4096)),
          0,
          static_cast<uint64_t>(random.pick(0, int64_t{1} << 48))};
}

void expect_records(const std::vector<Segment>& segments, const std::function<SegmentRecord(size_t)>& record_at) {
  int64_t begin_bytes = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentRecord record = record_at(i);
    ASSERT_EQ(record.address, segments[i].address);
    ASSERT_EQ(record.num_bytes, segments[i].num_bytes);
    ASSERT_EQ(record.begin_bytes, begin_bytes);
    begin_bytes += segments[i].num_bytes;
  }
}

TEST(TableImage, HoldsEveryHeadAndSegmentOfEveryRandomPlan) {
  Random random(20261202);
  for (int i = 0; i < 10000; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Plan plan = random_plan(random);
    std::vector<WindowHeader> headers;
    for (size_t w = 0; w < plan.windows.size(); ++w) headers.push_back(random_header(random));
    const TableImage image = table_image(plan, headers);

    ASSERT_EQ(image.offsets.size(), plan.windows.size());
    size_t next_offset = 0;
    for (size_t w = 0; w < plan.windows.size(); ++w) {
      const size_t offset = image.offsets[w];
      ASSERT_EQ(offset, next_offset) << "windows follow each other";
      ASSERT_EQ(offset % alignof(WindowHead), 0u);
      const auto head = read<WindowHead>(image.bytes, offset);
      ASSERT_EQ(std::memcmp(&head.header, &headers[w], sizeof(WindowHeader)), 0);
      const WindowTickets unused;
      ASSERT_EQ(std::memcmp(&head.tickets, &unused, sizeof(WindowTickets)), 0);
      const size_t records = offset + sizeof(WindowHead);
      expect_records(plan.windows[w].segments,
                     [&](size_t s) { return read<SegmentRecord>(image.bytes, records + s * sizeof(SegmentRecord)); });
      next_offset = records + plan.windows[w].segments.size() * sizeof(SegmentRecord);
    }
    ASSERT_EQ(image.bytes.size(), next_offset);
    if (HasFailure()) return;
  }
}

TEST(TableImage, OfAPlanWithoutWindowsIsEmpty) { EXPECT_TRUE(table_image({}, {}).bytes.empty()); }

TEST(InlineWindow, HoldsItsSegmentsWholeWhateverTheHeadersLimit) {
  Random random(7);
  for (int i = 0; i < 10000; ++i) {
    std::vector<Segment> segments(random.pick(0, kMaxInlineSegments));
    int64_t num_bytes = 0;
    for (Segment& segment : segments) {
      segment = {static_cast<uintptr_t>(16 * random.pick(1, 1 << 30)), 16 * random.pick(1, 1 << 20), nullptr};
      num_bytes += segment.num_bytes;
    }
    WindowHeader header = random_header(random);
    const InlineWindow window = inline_window(segments, header);
    header.byte_limit = num_bytes;
    ASSERT_EQ(std::memcmp(&window.header, &header, sizeof(header)), 0) << "case " << i;
    expect_records(segments, [&](size_t s) { return window.segments[s]; });
    if (HasFailure()) return;
  }
}

TEST(CarriedRecords, AreTheFirstOnesEachCutToTheMost) {
  const std::vector<Segment> segments{
      {0x1000, 64, nullptr}, {0x2000, 3 * kMaxCarriedBytes, nullptr}, {0x3000, 64, nullptr}};
  const CarriedRecords all = carried_records(segments);
  EXPECT_EQ(all.address[0], 0x1000u);
  EXPECT_EQ(all.num_bytes[0], 64);
  EXPECT_EQ(all.address[1], 0x2000u);
  EXPECT_EQ(all.num_bytes[1], kMaxCarriedBytes);
  const CarriedRecords one = carried_records(std::span(segments).first(1));
  EXPECT_EQ(one.num_bytes[1], 0) << "a range that is not used is empty";
}

}  // namespace
}  // namespace l2pf
