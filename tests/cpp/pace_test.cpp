#include "cuda/pace.h"

#include <gtest/gtest.h>

#include "backend.h"

namespace l2pf {
namespace {

constexpr int64_t kBytesPerCta = kMaxThreads * kLineBytes;

int64_t in_flight_bytes(const Pace& pace) { return kBytesPerCta * pace.num_ctas * pace.loads_in_flight; }

TEST(Pace, TakesCtasBeforeLoadsOfOneThread) {
  EXPECT_EQ(pace_under(128 << 10, 24), (Pace{2, 1}));
  EXPECT_EQ(pace_under(24 * kBytesPerCta, 24), (Pace{24, 1}));
  EXPECT_EQ(pace_under(48 * kBytesPerCta, 24), (Pace{24, 2}));
  EXPECT_EQ(pace_under(int64_t{1} << 40, 24), (Pace{24, kMaxLoadsInFlight}));
}

TEST(Pace, TheLeastCapIsOneLoadOfEachThreadOfOneCta) {
  EXPECT_EQ(kLeastInFlightBytes, kBytesPerCta);
  EXPECT_EQ(pace_under(kLeastInFlightBytes, 132), (Pace{1, 1}));
  EXPECT_EQ(pace_under(1, 132), (Pace{1, 1}));
}

TEST(Pace, StaysUnderEveryCapAndUsesMoreThanHalfOfIt) {
  for (const int num_ctas : {1, 3, 24, 66, 132, 264}) {
    const int64_t most = kBytesPerCta * num_ctas * kMaxLoadsInFlight;
    for (int64_t cap = kLeastInFlightBytes; cap <= 2 * most; cap += 4096) {
      const Pace pace = pace_under(cap, num_ctas);
      ASSERT_LE(pace.num_ctas, num_ctas);
      ASSERT_LE(pace.loads_in_flight, kMaxLoadsInFlight);
      ASSERT_LE(in_flight_bytes(pace), cap) << cap << " on " << num_ctas;
      ASSERT_GT(2 * in_flight_bytes(pace), std::min(cap, most)) << cap << " on " << num_ctas;
    }
  }
}

}  // namespace
}  // namespace l2pf
