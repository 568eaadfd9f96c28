#include "forward.h"

#include <thread>

#include "forward_fixture.h"

// Eager forwards: the eager column of the state table, brackets, threads, streams, devices.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::new_fake_backend;
using testing_support::place;
using testing_support::Step;
using testing_support::Verbs;
using testing_support::weight;

using ForwardTest = ForwardFixture;

TEST_F(ForwardTest, UnlearnedRecordsAndLaunchesNothing) {
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"make_table 0@1 windows 2"}));
  EXPECT_EQ(state().state(), State::kPlanned);
  EXPECT_EQ(state().num_launched(), 0);
}

TEST_F(ForwardTest, PlannedPrefetchesEachWindowAndJoinsAtTheNextCollective) {
  eager();
  backend.take_verbs();
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1", "fork 0@1 window 1", "join 0@1"}));
  EXPECT_EQ(state().num_launched(), 2);
}

TEST_F(ForwardTest, TheLastWindowIsJoinedBeforeEndForwardReturns) {
  const std::vector<Step> one{{CollectiveKind::kAllReduce, {weight(0x1000)}}};
  run(one);
  backend.take_verbs();
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce, one[0].weights);
  EXPECT_TRUE(outstanding());
  end_forward();
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"}));
}

TEST_F(ForwardTest, TheLatestEagerSightWins) {
  eager();
  steps[0].weights = {weight(0x9000)};
  eager();
  EXPECT_EQ(state().plan()->windows[0].segments, steps[0].weights);
}

TEST_F(ForwardTest, UnlearnedWithoutACollectiveStaysUnlearned) {
  run({});
  EXPECT_EQ(state().state(), State::kUnlearned);
  EXPECT_CONTAINS("no collective seen", reason());
  EXPECT_TRUE(backend.verbs.empty());
}

TEST_F(ForwardTest, PlannedWithoutACollectiveKeepsThePlan) {
  eager();
  run({});
  EXPECT_EQ(state().plan()->num_collectives(), 3);
  EXPECT_CONTAINS("the earlier plan stays", reason());
}

TEST_F(ForwardTest, MoreCollectivesThanLearnedLaunchNothingPastThePlan) {
  eager();
  backend.take_verbs();
  steps.push_back({CollectiveKind::kAllReduce, {weight(0x9000)}});
  eager();
  EXPECT_EQ(backend.num_verbs("fork"), 2);
  EXPECT_EQ(state().plan()->num_collectives(), 4) << "and the longer forward is learned";
}

TEST_F(ForwardTest, AfterACollectiveOfAnotherKindNothingIsLaunched) {
  eager();
  backend.take_verbs();
  steps[0].kind = CollectiveKind::kBroadcast;
  eager();
  EXPECT_EQ(backend.num_verbs("fork"), 0);
}

TEST_F(ForwardTest, AllGathersSwitchedOffAreNumberedAndLaunchNothing) {
  use({.plan = {.all_gather = false}});
  eager();
  backend.take_verbs();
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"}));
  EXPECT_EQ(state().plan()->num_collectives(), 3);
}

TEST_F(ForwardTest, ViewsWithHolesAreCountedAndNotPlanned) {
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce, {weight(0x1000)});
  current_forward()->record_weight(std::nullopt, 0);
  end_forward();
  EXPECT_EQ(state().num_skipped_views(), 1);
  EXPECT_EQ(state().plan()->windows[0].segments.size(), 1u);
}

TEST_F(ForwardTest, TheGivenStreamReachesTheVerbs) {
  eager();
  main = place(0, 7);
  backend.take_verbs();
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@7 window 0", "join 0@7", "fork 0@7 window 1", "join 0@7"}));
}

TEST_F(ForwardTest, ThePrologueOfForwardsBackToBackIsLaunchedInTheLastWindow) {
  use({.plan = {.back_to_back = true}});
  const auto forward = [&] {
    ASSERT_TRUE(begin());
    current_forward()->record_weight(weight(0x500), 0);
    for (const auto& step : steps) collective(step.kind, step.weights);
    end_forward();
  };
  forward();
  backend.take_verbs();
  forward();
  EXPECT_EQ(backend.num_verbs("fork"), 3);
  EXPECT_EQ(state().plan()->windows[2].segments, (std::vector{weight(0x500)}));
  EXPECT_EQ(state().plan()->dropped_prologue_bytes, 0);
}

TEST_F(ForwardTest, WeightsBehindTooMuchUnplannedAreLeftOutAndSaid) {
  const auto forward = [&](int64_t unplanned_bytes) {
    ASSERT_TRUE(begin());
    collective(CollectiveKind::kAllReduce);
    current_forward()->record_unplanned(unplanned_bytes);
    current_forward()->record_weight(weight(0x1000), 0);
    end_forward();
  };
  forward(16 << 20);
  EXPECT_EQ(state().plan()->windows.size(), 1u) << "half of L2 may go by";
  forward((16 << 20) + 1);
  EXPECT_TRUE(state().plan()->windows.empty());
  EXPECT_EQ(state().plan()->evicted_bytes, 64);
  EXPECT_CONTAINS("evicted", reason());
}

TEST_F(ForwardTest, ModesThatAreNotDecodeLikeDoNotCount) {
  signature.mode = "extend";
  EXPECT_FALSE(begin());
  EXPECT_EQ(current_forward(), nullptr) << "and every operator returns at once";
  end_forward();
  EXPECT_EQ(state().num_eager(), 0);
}

TEST_F(ForwardTest, TooManyTokensDoNotCount) {
  signature.num_tokens = 257;
  EXPECT_FALSE(begin());
  end_forward();
}

TEST_F(ForwardTest, NestedForwardsAreIgnored) {
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce);
  EXPECT_FALSE(begin());
  collective(CollectiveKind::kAllReduce);
  end_forward();
  ASSERT_NE(current_forward(), nullptr) << "the inner end closes the inner forward";
  EXPECT_EQ(current_forward()->num_collectives(), 2);
  end_forward();
  EXPECT_EQ(state().num_eager(), 1);
}

TEST_F(ForwardTest, AForwardInsideOneThatDoesNotCountIsBalanced) {
  const Signature decode = signature;
  signature.mode = "extend";
  ASSERT_FALSE(begin());
  signature = decode;
  ASSERT_TRUE(begin());
  ASSERT_FALSE(begin());
  end_forward();
  end_forward();
  EXPECT_EQ(current_forward(), nullptr);
  end_forward();
  EXPECT_TRUE(begin()) << "nothing is left over from the outer one";
  end_forward();
  EXPECT_EQ(state().num_eager(), 2);
}

TEST_F(ForwardTest, AnEndWithoutABeginDoesNothing) {
  end_forward();
  EXPECT_TRUE(begin());
  end_forward();
}

TEST_F(ForwardTest, AForwardCutShortLeavesNothingOutstanding) {
  eager();
  ASSERT_TRUE(begin());
  current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, main);
  end_forward();  // as `finally` does after an exception between begin and end of the collective
  EXPECT_FALSE(outstanding());
}

TEST_F(ForwardTest, ACollectiveOnAnotherDeviceNeitherJoinsNorHidesTheOutstandingPrefetch) {
  const auto two_devices = [&] {
    ASSERT_TRUE(begin());
    collective(CollectiveKind::kAllReduce, {weight(0x1000)});
    current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, place(1, 2));
    current_forward()->collective_end(backend, place(1, 2));
    end_forward();
  };
  two_devices();
  EXPECT_EQ(backend.take_verbs(), (Verbs{"make_table 0@1 windows 1"})) << "the table is on the windows' device";
  two_devices();
  EXPECT_EQ(backend.verbs, (Verbs{"fork 0@1 window 0", "join 0@1"}));
  EXPECT_FALSE(outstanding(0));
}

TEST_F(ForwardTest, ACollectiveOfAnotherBackendLeavesNothingOutstanding) {
  auto& host = new_fake_backend();
  const auto with_host_collective = [&] {
    ASSERT_TRUE(begin());
    collective(CollectiveKind::kAllReduce, {weight(0x1000)});
    current_forward()->collective_begin(CollectiveKind::kBroadcast, host, place(kCpu));
    current_forward()->collective_end(host, place(kCpu));
    end_forward();
  };
  with_host_collective();
  with_host_collective();
  EXPECT_TRUE(host.verbs.empty());
  EXPECT_EQ(backend.verbs, (Verbs{"make_table 0@1 windows 1", "fork 0@1 window 0", "join 0@1"}));
}

TEST_F(ForwardTest, APlanIsNotLaunchedOnAnotherDevice) {
  eager();
  backend.take_verbs();
  main = place(1);
  eager();
  EXPECT_EQ(backend.verbs, (Verbs{"make_table 1@1 windows 2"})) << "the latest sight is on device 1";
}

TEST_F(ForwardTest, InvalidateDuringAForwardIgnoresItsResult) {
  eager();
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce, steps[0].weights);
  prefetcher->invalidate();
  end_forward();
  EXPECT_EQ(state().state(), State::kUnlearned);
  EXPECT_EQ(state().plan(), nullptr);
  EXPECT_FALSE(outstanding());
  EXPECT_TRUE(backend.tables[0].expired()) << "the running forward was its last owner";
}

TEST_F(ForwardTest, EachThreadHasItsOwnForward) {
  ASSERT_TRUE(begin());
  std::thread([&] {
    EXPECT_EQ(current_forward(), nullptr);
    auto& other = new_fake_backend();
    ASSERT_TRUE(begin_forward(1, prefetcher, {2, 1, "decode"}, false));
    current_forward()->collective_begin(CollectiveKind::kAllReduce, other, place(1));
    EXPECT_EQ(current_forward()->num_collectives(), 1);
    end_forward();
  }).join();
  EXPECT_EQ(current_forward()->num_collectives(), 0);
  end_forward();
}

}  // namespace
}  // namespace l2pf
