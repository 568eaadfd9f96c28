#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../plan.h"
#include "table_layout.h"

// What the device reads, as plain C++: laid out, and tested, without CUDA.
namespace l2pf {

// The bytes of a table: each window a head and its segments' records.
struct TableImage {
  std::vector<char> bytes;
  std::vector<size_t> offsets;  // of each window's head in `bytes`
};

// `headers[i]` belongs to `plan.windows[i]`.
TableImage table_image(const Plan& plan, std::span<const WindowHeader> headers);

// `segments` in kernel parameters, at most kMaxInlineSegments of them.
InlineWindow inline_window(std::span<const Segment> segments, const WindowHeader& header);

// The first kMaxCarried of `segments`, each cut to kMaxCarriedBytes.
CarriedRecords carried_records(std::span<const Segment> segments);

}  // namespace l2pf
