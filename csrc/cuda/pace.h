#pragma once

#include <algorithm>
#include <cstdint>

namespace l2pf {

// How many loads a prefetch has in flight: CTAs x threads x loads of a thread, each of a line.
struct Pace {
  int num_ctas = 0;
  int loads_in_flight = 0;  // of a thread

  friend bool operator==(const Pace&, const Pace&) = default;
};

inline constexpr int kMaxThreads = 512;  // of a CTA
inline constexpr int64_t kLineBytes = 128;
// 8..16 of a thread fill the memory system, more only cost registers.
inline constexpr int kMaxLoadsInFlight = 8;
// Where the GPU's memory is the host's too, a prefetch at full rate slows the network that the collective waits for:
// others measured on a GB10 that 3 MB in flight harm and 128 KiB are best.
inline constexpr int64_t kSharedMemoryInFlightBytes = 128 << 10;

// The widest pace that keeps at most `in_flight_bytes` in flight: CTAs first, then loads of a thread. One load of each
// thread of one CTA is the least there is.
inline Pace pace_under(int64_t in_flight_bytes, int num_ctas) {
  const int64_t loads_of_ctas = in_flight_bytes / (kLineBytes * kMaxThreads);
  const int64_t loads = std::clamp<int64_t>(loads_of_ctas / num_ctas, 1, kMaxLoadsInFlight);
  return {static_cast<int>(std::clamp<int64_t>(loads_of_ctas / loads, 1, num_ctas)), static_cast<int>(loads)};
}

}  // namespace l2pf
