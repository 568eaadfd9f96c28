#include "cuda/partitions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace l2pf {
namespace {

using Partitions = std::vector<int64_t>;

constexpr int kNumLines = 64;
constexpr uint32_t kNear = 290;
constexpr uint32_t kFar = 460;

// Latencies as seen by SMs of `partitions`, of lines that SM 0 has loaded: those at home on its side, a quarter here,
// are far from the other side. spread: how far an SM's own place and each line's moves a latency. num_outliers: lines
// that an SM had to wait long for, a TLB miss say.
class Silicon {
 public:
  explicit Silicon(uint32_t seed) : random_(seed) {
    for (int i = 0; i < kNumLines; ++i) homes_.push_back(i % 4 == 0 ? 0 : 1);
    std::shuffle(homes_.begin(), homes_.end(), random_);
  }
  uint32_t pick(uint32_t low, uint32_t high) { return std::uniform_int_distribution<uint32_t>(low, high)(random_); }

  std::vector<uint32_t> cycles(const Partitions& partitions, uint32_t spread, int num_outliers = 0) {
    std::vector<uint32_t> cycles;
    for (const int64_t partition : partitions) {
      const uint32_t place = pick(0, spread);
      for (const int64_t home : homes_)
        cycles.push_back((partition == 1 && home == 0 ? kFar : kNear) + place + pick(0, spread));
      for (int i = 0; i < num_outliers; ++i) cycles[cycles.size() - kNumLines + pick(0, kNumLines - 1)] += 2000;
    }
    return cycles;
  }
  Partitions shuffled(size_t num_sms, size_t num_in_second) {
    Partitions partitions(num_sms, 0);
    std::fill_n(partitions.begin(), num_in_second, 1);
    std::shuffle(partitions.begin() + 1, partitions.end(), random_);
    partitions.front() = 0;  // SM 0 is next to partition 0, by definition
    return partitions;
  }

 private:
  std::mt19937 random_;
  std::vector<int64_t> homes_;
};

TEST(SplitLatencies, FindsThePartitionsInAnyOrderAndProportion) {
  for (uint32_t round = 0; round < 500; ++round) {
    Silicon silicon(round);
    const uint32_t num_sms = silicon.pick(24, 160);
    const Partitions expected = silicon.shuffled(num_sms, silicon.pick(num_sms / 3, 2 * num_sms / 3));
    ASSERT_EQ(split_latencies(silicon.cycles(expected, 20), kNumLines), expected) << "round " << round;
  }
}

TEST(SplitLatencies, AFewSlowLinesDoNotMatter) {
  for (uint32_t round = 0; round < 500; ++round) {
    Silicon silicon(round);
    const Partitions expected = silicon.shuffled(132, 66);
    ASSERT_EQ(split_latencies(silicon.cycles(expected, 20, 2), kNumLines), expected) << "round " << round;
  }
}

TEST(SplitLatencies, OnePartitionIsOnePiece) {
  for (uint32_t round = 0; round < 500; ++round) {
    Silicon silicon(round);
    // All SMs see the lines alike, the lines near a memory controller nearer.
    ASSERT_EQ(split_latencies(silicon.cycles(Partitions(132, 0), 40), kNumLines), Partitions{});
    std::vector<uint32_t> noise;
    for (int i = 0; i < 132 * kNumLines; ++i) noise.push_back(silicon.pick(270, 310));
    ASSERT_EQ(split_latencies(noise, kNumLines), Partitions{}) << "round " << round;
  }
  EXPECT_EQ(split_latencies(std::vector<uint32_t>(132 * kNumLines, 300), kNumLines), Partitions{});
}

TEST(SplitLatencies, ASmallGroupIsNoPartition) {
  Silicon silicon(1);
  EXPECT_EQ(split_latencies(silicon.cycles(silicon.shuffled(132, 20), 40), kNumLines), Partitions{});
}

TEST(SplitLatencies, TooFewToTellAreOnePiece) {
  EXPECT_EQ(split_latencies({}, kNumLines), Partitions{});
  EXPECT_EQ(split_latencies({}, 0), Partitions{});
  EXPECT_EQ(split_latencies(std::vector<uint32_t>(kNumLines, 300), kNumLines), Partitions{});
}

}  // namespace
}  // namespace l2pf
