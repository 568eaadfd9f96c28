#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstring>

#include "cuda/table_image.h"
#include "require.h"

// A table's bytes, read back as a kernel reads them: the pieces of each window cover exactly the first byte_limit
// bytes of its segments, once, and nothing else.
namespace l2pf {
namespace {

constexpr size_t kMaxWindows = 6;
constexpr size_t kMaxSegments = 140;  // more than two rounds of the kernel
constexpr size_t kSegmentsPerRound = 64;
constexpr int64_t kMaxPiecesWalked = 4096;  // a window beyond it is cut: the walk is linear in its pieces

template <typename T>
T read(const std::vector<char>& bytes, size_t offset) {
  L2PF_REQUIRE(offset % alignof(T) == 0 && offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

Plan any_plan(FuzzedDataProvider& data, int64_t piece_bytes) {
  Plan plan;
  plan.windows.resize(data.ConsumeIntegralInRange<size_t>(0, kMaxWindows));
  for (Window& window : plan.windows) {
    int64_t num_pieces = 0;
    for (size_t left = data.ConsumeIntegralInRange<size_t>(1, kMaxSegments); left > 0; --left) {
      const uintptr_t address = 16 * data.ConsumeIntegralInRange<uintptr_t>(1, uintptr_t{1} << 43);
      const int64_t num_bytes = 16 * data.ConsumeIntegralInRange<int64_t>(1, int64_t{1} << 20);
      num_pieces += num_bytes / piece_bytes + 1;
      if (num_pieces > kMaxPiecesWalked) break;
      window.segments.push_back({address, num_bytes, nullptr});
      window.num_bytes += num_bytes;
    }
  }
  return plan;
}

// The pieces as the kernel's flat index numbers them, a round of segments at a time; back to back pieces are one.
std::vector<Segment> walk(const WindowHeader& header, const std::vector<SegmentRecord>& records) {
  std::vector<Segment> covered;
  const auto piece_bytes = static_cast<uint64_t>(header.piece_bytes);
  for (size_t done = 0; done < records.size(); done += kSegmentsPerRound) {
    for (size_t i = done; i < std::min(records.size(), done + kSegmentsPerRound); ++i) {
      const SegmentRecord& record = records[i];
      const int64_t left = std::clamp<int64_t>(header.byte_limit - record.begin_bytes, 0, record.num_bytes);
      const uint64_t end = record.address + static_cast<uint64_t>(left);
      for (uint64_t piece = record.address; piece < end; piece += piece_bytes) {
        const auto num_bytes = static_cast<int64_t>(std::min(piece_bytes, end - piece));
        L2PF_REQUIRE(num_bytes > 0 && num_bytes % kSegmentAlignment == 0 && piece % kSegmentAlignment == 0);
        if (piece == record.address)
          covered.push_back({piece, num_bytes, nullptr});
        else
          covered.back().num_bytes += num_bytes;
      }
    }
  }
  return covered;
}

void check_records(const std::vector<SegmentRecord>& records, const std::vector<Segment>& segments) {
  L2PF_REQUIRE(records.size() == segments.size());
  int64_t begin_bytes = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    L2PF_REQUIRE(records[i].address == segments[i].address && records[i].num_bytes == segments[i].num_bytes);
    L2PF_REQUIRE(records[i].begin_bytes == begin_bytes);
    begin_bytes += records[i].num_bytes;
  }
}

void run(FuzzedDataProvider& data) {
  WindowHeader common;
  common.form = data.ConsumeIntegralInRange(1, 4);
  common.num_ctas = data.ConsumeIntegralInRange(1, 512);
  common.piece_bytes = 16 * data.ConsumeIntegralInRange(1, 4096);
  const Plan plan = any_plan(data, common.piece_bytes);
  std::vector<WindowHeader> headers;
  for (const Window& window : plan.windows) {
    headers.push_back(common);
    headers.back().byte_limit =
        data.ConsumeIntegralInRange<int64_t>(0, 2 * window.num_bytes) & ~(kSegmentAlignment - 1);
  }

  const TableImage image = table_image(plan, headers);
  L2PF_REQUIRE(image.offsets.size() == plan.windows.size());
  size_t end = 0;
  for (size_t w = 0; w < plan.windows.size(); ++w) {
    const auto& segments = plan.windows[w].segments;
    L2PF_REQUIRE(image.offsets[w] == end);
    const auto head = read<WindowHead>(image.bytes, end);
    L2PF_REQUIRE(std::memcmp(&head.header, &headers[w], sizeof(head.header)) == 0);
    end += sizeof(head);
    std::vector<SegmentRecord> records;
    for (size_t s = 0; s < segments.size(); ++s, end += sizeof(SegmentRecord))
      records.push_back(read<SegmentRecord>(image.bytes, end));
    check_records(records, segments);
    L2PF_REQUIRE(walk(head.header, records) == cut_to_budget(segments, head.header.byte_limit));

    const std::span by_value(segments.data(), std::min<size_t>(segments.size(), kMaxInlineSegments));
    const InlineWindow inlined = inline_window(by_value, headers[w]);
    const std::vector<Segment> whole(by_value.begin(), by_value.end());
    const std::vector<SegmentRecord> inlined_records(inlined.segments, inlined.segments + whole.size());
    check_records(inlined_records, whole);
    L2PF_REQUIRE(walk(inlined.header, inlined_records) == whole);
  }
  L2PF_REQUIRE(image.bytes.size() == end);
}

}  // namespace
}  // namespace l2pf

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t num_bytes) {
  FuzzedDataProvider data(bytes, num_bytes);
  l2pf::run(data);
  return 0;
}
