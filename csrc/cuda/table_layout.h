#pragma once

#include <cstdint>

#include "pace.h"

namespace l2pf {

// Until calibration has measured it: a prefetch starts with its collective.
inline constexpr int kDefaultStartDelayNs = 0;

// How a kernel reads a window. Plain bytes, the same on host and device.
struct alignas(16) WindowHeader {
  int64_t byte_limit = 0;                       // of the window's segments in order; 0: the node does nothing
  int16_t form = 0;                             // a Form other than kAuto
  int16_t loads_in_flight = kMaxLoadsInFlight;  // of a thread; hints do not wait
  int32_t num_ctas = 0;                         // CTAs of the grid that work; the others leave at once
  int32_t piece_bytes = 0;                      // one bulk instruction; a multiple of 16
  int32_t start_delay_ns = 0;    // what the collective gets to ring its peers before the prefetch takes the bandwidth
  uint64_t partition_of_sm = 0;  // load_both: device address of one byte an SM, the L2 partition next to it
};

// load_both: each partition's CTAs draw pieces until none is left; the last CTA puts all back to zero for the next
// launch. A patch of the header zeroes them too.
struct alignas(16) WindowTickets {
  uint32_t next[2] = {};
  uint32_t num_ctas_done = 0;
  uint32_t reserved = 0;
};

struct WindowHead {
  WindowHeader header;
  WindowTickets tickets;
};

struct alignas(16) SegmentRecord {
  uint64_t address = 0;
  int64_t num_bytes = 0;
  int64_t begin_bytes = 0;  // bytes of the window's segments before this one
  int64_t reserved = 0;
};

static_assert(sizeof(WindowHeader) == 32 && sizeof(WindowHead) == 48 && sizeof(SegmentRecord) == 32);

// What the collective beside a node reads and writes: the node reads its lines last.
inline constexpr int kMaxCarried = 2;
inline constexpr int64_t kMaxCarriedBytes = 1 << 20;  // what is longer waits for the links, not for L2
struct CarriedRecords {
  uint64_t address[kMaxCarried] = {};
  int64_t num_bytes[kMaxCarried] = {};
};

// A window carried by value in the kernel's parameters, where there is no table: a bare l2_prefetch.
inline constexpr int kMaxInlineSegments = 96;
struct InlineWindow {
  WindowHeader header;
  SegmentRecord segments[kMaxInlineSegments];
};
static_assert(sizeof(InlineWindow) <= 4000, "kernel parameters hold 4 KiB on every GPU");

}  // namespace l2pf
