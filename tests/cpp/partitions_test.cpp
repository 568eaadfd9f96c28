#include "cuda/partitions.h"

#include <gtest/gtest.h>

#include <random>

namespace l2pf {
namespace {

using Partitions = std::vector<int64_t>;

TEST(SplitLatencies, TwoGroupsAreTheTwoSidesOfTheirGap) {
  EXPECT_EQ(split_latencies({281, 367, 290, 390, 304, 381}), (Partitions{0, 1, 0, 1, 0, 1}));
}

TEST(SplitLatencies, OneGroupIsOnePiece) {
  EXPECT_EQ(split_latencies({281, 290, 304, 285, 299, 283}), Partitions{});
  EXPECT_EQ(split_latencies({300, 300, 300, 300}), Partitions{});
}

TEST(SplitLatencies, ASlowStragglerIsNoPartition) {
  EXPECT_EQ(split_latencies({281, 283, 285, 287, 289, 290, 291, 900}), Partitions{});
}

TEST(SplitLatencies, TooFewToTellAreOnePiece) {
  EXPECT_EQ(split_latencies({}), Partitions{});
  EXPECT_EQ(split_latencies({300}), Partitions{});
}

TEST(SplitLatencies, FindsTheGroupsInAnyOrderAndProportion) {
  std::mt19937 random(11);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  for (int round = 0; round < 1000; ++round) {
    const uint32_t num_sms = pick(24, 160);
    const uint32_t num_far = pick(num_sms / 3, 2 * num_sms / 3);
    Partitions expected(num_sms, 0);
    std::fill_n(expected.begin(), num_far, 1);
    std::shuffle(expected.begin(), expected.end(), random);
    std::vector<uint32_t> cycles;
    for (const int64_t partition : expected) cycles.push_back(pick(280, 304) + (partition == 1 ? 86 : 0));
    ASSERT_EQ(split_latencies(cycles), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace l2pf
