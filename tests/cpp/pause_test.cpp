#include "forward_fixture.h"

// Pauses and invalidation: what happens to live tables, those that only a graph holds included.
namespace l2pf {
namespace {

using testing_support::FakeTable;
using testing_support::ForwardFixture;
using testing_support::Step;
using testing_support::Verbs;
using testing_support::weight;

class PauseTest : public ForwardFixture {
 protected:
  Patch patch = [this](Table& table, int window_index, const WindowSetting& setting) {
    backend.patch_table(table, window_index, setting, main);
  };

  // The byte limits of the `index`-th table ever made.
  std::vector<int64_t> limits(size_t index) const {
    const auto table = std::static_pointer_cast<FakeTable>(backend.tables.at(index).lock());
    std::vector<int64_t> found;
    for (const auto& setting : table->settings) found.push_back(setting.byte_limit);
    return found;
  }
  std::vector<Step> other_steps{{CollectiveKind::kAllReduce, {weight(0x9000)}}};
};

TEST_F(PauseTest, APauseSwitchesEveryWindowOffAndAResumeRestoresIt) {
  eager();
  prefetcher->set_window(signature, 1, 48, Form::kLoad, backend, main);
  prefetcher->pause(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(state().settings()[1].byte_limit, 48) << "what is remembered";
  prefetcher->resume(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{128, 48}));
}

TEST_F(PauseTest, WhilePausedNoForwardIsAccepted) {
  eager();
  prefetcher->pause(patch);
  backend.take_verbs();
  EXPECT_FALSE(begin());
  EXPECT_EQ(current_forward(), nullptr);
  end_forward();
  EXPECT_EQ(backend.verbs, Verbs{});
  prefetcher->resume(patch);
  EXPECT_EQ(state().num_eager(), 1);
  eager();
  EXPECT_EQ(state().num_eager(), 2);
}

TEST_F(PauseTest, PausesNest) {
  eager();
  prefetcher->pause(patch);
  prefetcher->pause(patch);
  prefetcher->resume(patch);
  EXPECT_TRUE(prefetcher->is_paused());
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0, 0}));
  prefetcher->resume(patch);
  EXPECT_FALSE(prefetcher->is_paused());
  EXPECT_EQ(limits(0), (std::vector<int64_t>{128, 128}));
}

TEST_F(PauseTest, AResumeWithoutAPauseIsAnError) {
  EXPECT_THROW(prefetcher->resume(patch), std::invalid_argument);
  EXPECT_FALSE(prefetcher->is_paused());
}

TEST_F(PauseTest, ATableThatOnlyAGraphHoldsIsSwitchedOffToo) {
  eager();
  capture();
  prefetcher->invalidate();  // without a patch: the graph keeps its windows
  run(other_steps);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{128, 128}));
  prefetcher->pause(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(limits(1), (std::vector<int64_t>{0}));
  prefetcher->resume(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0, 0})) << "nobody knows whether its weights are still there";
  EXPECT_EQ(limits(1), (std::vector<int64_t>{64}));
}

TEST_F(PauseTest, AForwardThatRunsIntoAPauseTeachesNothing) {
  eager();
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce, {weight(0x9000)});
  prefetcher->pause(patch);
  end_forward();
  EXPECT_EQ(state().num_eager(), 1);
  EXPECT_EQ(state().plan()->num_collectives(), 3);
  EXPECT_FALSE(outstanding());
  prefetcher->resume(patch);
}

TEST_F(PauseTest, ACaptureThatRunsIntoAPauseGetsItsWindowsBackWithTheResume) {
  eager();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce);
  prefetcher->pause(patch);
  collective(CollectiveKind::kAllGather);
  collective(CollectiveKind::kAllReduce);
  end_forward();
  backend.captures.clear();
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0, 0}));
  prefetcher->resume(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{128, 128}));
}

TEST_F(PauseTest, AWindowSetWhilePausedComesWithTheResume) {
  eager();
  prefetcher->pause(patch);
  backend.take_verbs();
  prefetcher->set_window(signature, 0, 32, {}, backend, main);
  EXPECT_EQ(backend.verbs, Verbs{});
  prefetcher->resume(patch);
  EXPECT_EQ(limits(0), (std::vector<int64_t>{32, 128}));
}

TEST_F(PauseTest, APauseThatFailsSaysSoAndCounts) {
  eager();
  backend.failing_verb = "patch_table";
  EXPECT_THROW(prefetcher->pause(patch), BackendError);
  EXPECT_TRUE(prefetcher->is_paused());
  EXPECT_FALSE(begin());
  end_forward();
  backend.failing_verb.clear();
  prefetcher->resume(patch);
  eager();
  EXPECT_EQ(reason(), "");
}

TEST_F(PauseTest, AResumeThatFailsLatchesTheSignatureOff) {
  eager();
  prefetcher->pause(patch);
  backend.failing_verb = "patch_table";
  prefetcher->resume(patch);
  EXPECT_FALSE(prefetcher->is_paused());
  EXPECT_EQ(reason(), "latched off: patch_table failed");
}

TEST_F(PauseTest, InvalidateWithAPatchSwitchesGraphsOffAndLetsGoOfTheWeights) {
  std::vector<Step> one(1);
  one[0].weights.push_back(weight(0x1000));
  const std::weak_ptr<const void> owner = one[0].weights[0].owner;
  run(one);
  capture(std::vector<Step>(1));
  one.clear();
  prefetcher->invalidate(patch);
  EXPECT_FALSE(backend.tables[0].expired()) << "the graph reads its header";
  EXPECT_EQ(limits(0), (std::vector<int64_t>{0}));
  EXPECT_TRUE(owner.expired()) << "and nothing else";
}

TEST_F(PauseTest, AnInvalidateThatFailsKeepsWhatAGraphReads) {
  std::vector<Step> one(1);
  one[0].weights.push_back(weight(0x1000));
  const std::weak_ptr<const void> owner = one[0].weights[0].owner;
  run(one);
  capture(std::vector<Step>(1));
  one.clear();
  backend.failing_verb = "patch_table";
  prefetcher->invalidate(patch);
  EXPECT_EQ(state().state(), State::kUnlearned);
  EXPECT_FALSE(owner.expired());
}

TEST_F(PauseTest, RelearningOftenLeavesOneTable) {
  for (uintptr_t round = 1; round <= 100; ++round) run({{CollectiveKind::kAllReduce, {weight(0x1000 * round)}}});
  backend.take_verbs();
  prefetcher->pause(patch);
  EXPECT_EQ(backend.num_verbs("patch_table"), 1);
}

}  // namespace
}  // namespace l2pf
