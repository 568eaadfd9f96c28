#include "table_image.h"

#include <algorithm>
#include <cstring>

namespace l2pf {
namespace {

// Returns the bytes of all segments.
int64_t write_segments(std::span<const Segment> segments, SegmentRecord* records) {
  int64_t begin_bytes = 0;
  for (const Segment& segment : segments) {
    *records++ = {segment.address, segment.num_bytes, begin_bytes, 0};
    begin_bytes += segment.num_bytes;
  }
  return begin_bytes;
}

}  // namespace

TableImage table_image(const Plan& plan, std::span<const WindowHeader> headers) {
  TableImage image;
  size_t num_bytes = 0;
  for (const Window& window : plan.windows) {
    image.offsets.push_back(num_bytes);
    num_bytes += sizeof(WindowHead) + window.segments.size() * sizeof(SegmentRecord);
  }
  image.bytes.resize(num_bytes);
  for (size_t i = 0; i < image.offsets.size(); ++i) {
    char* const at = image.bytes.data() + image.offsets[i];
    const WindowHead head{headers[i], {}};
    std::memcpy(at, &head, sizeof(head));
    write_segments(plan.windows[i].segments, reinterpret_cast<SegmentRecord*>(at + sizeof(head)));
  }
  return image;
}

InlineWindow inline_window(std::span<const Segment> segments, const WindowHeader& header) {
  InlineWindow window{};
  window.header = header;
  window.header.byte_limit = write_segments(segments, window.segments);
  return window;
}

CarriedRecords carried_records(std::span<const Segment> segments) {
  CarriedRecords records;
  for (size_t i = 0; i < std::min<size_t>(segments.size(), kMaxCarried); ++i) {
    records.address[i] = segments[i].address;
    records.num_bytes[i] = std::min(segments[i].num_bytes, kMaxCarriedBytes);
  }
  return records;
}

}  // namespace l2pf
