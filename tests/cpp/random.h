#pragma once

#include <cstdint>
#include <random>

namespace l2pf::testing_support {

// The same numbers on every machine: std's distributions are not.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // In [low, high].
  int64_t pick(int64_t low, int64_t high) { return low + static_cast<int64_t>(engine_() % (high - low + 1)); }
  bool one_in(int64_t n) { return pick(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace l2pf::testing_support
