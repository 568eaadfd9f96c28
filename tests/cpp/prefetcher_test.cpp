#include "prefetcher.h"

#include "forward_fixture.h"

// Options, budgets, window settings and the life of tables and weights, over whole forwards.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::place;
using testing_support::Step;
using testing_support::Verbs;
using testing_support::weight;

class PrefetcherTest : public ForwardFixture {
 protected:
  void set_window(int64_t collective_index, int64_t budget_bytes, std::optional<Form> form = {}) {
    prefetcher->set_window(signature, collective_index, budget_bytes, form, backend, main);
  }
  std::string error_of_set_window(int64_t collective_index) {
    try {
      set_window(collective_index, 0);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  }
  // One forward with one window whose weight is returned only as its owner's watch.
  std::weak_ptr<const void> learn_one(uintptr_t address, int64_t num_bytes = 64) {
    auto owned = weight(address, num_bytes);
    const std::weak_ptr<const void> owner = owned.owner;
    std::vector<Step> one(1);
    one[0].weights.push_back(std::move(owned));
    run(one);
    return owner;
  }
};

TEST_F(PrefetcherTest, OnlyDecodeLikeForwardsUpToMaxTokensAreAccepted) {
  use({.max_tokens = 8});
  EXPECT_TRUE(prefetcher->accepts({1, 8, "decode"}));
  EXPECT_TRUE(prefetcher->accepts({1, 1, "target_verify"}));
  EXPECT_TRUE(prefetcher->accepts({1, 1, "draft_extend/variant"}));
  EXPECT_FALSE(prefetcher->accepts({1, 9, "decode"}));
  EXPECT_FALSE(prefetcher->accepts({1, 1, "extend"}));
}

TEST_F(PrefetcherTest, TheBudgetIsForEachWindow) {
  use({.budget_bytes = 96});
  eager();
  EXPECT_EQ(state().settings(), (std::vector<WindowSetting>{{96, Form::kAuto}, {96, Form::kAuto}}));
}

TEST_F(PrefetcherTest, TheBudgetIsNeverMoreThanTheWindow) {
  use({.budget_bytes = 6 << 20});
  eager();
  EXPECT_EQ(state().settings(), (std::vector<WindowSetting>{{128, Form::kAuto}, {128, Form::kAuto}}));
}

TEST_F(PrefetcherTest, AnAutoBudgetIsTheDevicesOwn) {
  backend.auto_budget = 32;
  eager();
  EXPECT_EQ(state().settings()[0].byte_limit, 32);
}

TEST_F(PrefetcherTest, TheConfiguredFormReachesEveryWindow) {
  use({.form = Form::kLines});
  eager();
  EXPECT_EQ(state().settings()[1].form, Form::kLines);
}

TEST_F(PrefetcherTest, SetWindowPatchesTheRightSetting) {
  eager();
  backend.take_verbs();
  set_window(1, 48, Form::kLoad);
  EXPECT_EQ(backend.verbs, (Verbs{"patch_table 0@1 window 1 limit 48 form load"}));
  EXPECT_EQ(state().settings()[1], (WindowSetting{48, Form::kLoad}));
  EXPECT_EQ(state().settings()[0].byte_limit, 128) << "the other window stays";
}

TEST_F(PrefetcherTest, SetWindowZeroSwitchesOffAndKeepsTheForm) {
  eager();
  set_window(0, 0, Form::kLines);
  set_window(0, 0);
  EXPECT_EQ(state().settings()[0], (WindowSetting{0, Form::kLines}));
}

TEST_F(PrefetcherTest, SetWindowMinusOneRestoresTheConfiguredBudget) {
  use({.budget_bytes = 96});
  eager();
  set_window(0, 0);
  set_window(0, kAutoBudget);
  EXPECT_EQ(state().settings()[0].byte_limit, 96);
}

TEST_F(PrefetcherTest, SetWindowMinusOneRestoresAnAutoBudget) {
  backend.auto_budget = 32;
  eager();
  set_window(0, 128);
  set_window(0, kAutoBudget);
  EXPECT_EQ(state().settings()[0].byte_limit, 32);
}

TEST_F(PrefetcherTest, SetWindowWorksOnAFrozenSignatureWithoutANewTable) {
  eager();
  capture();
  set_window(0, 16);
  EXPECT_EQ(backend.num_verbs("make_table"), 1);
  EXPECT_EQ(backend.num_verbs("patch_table"), 1);
}

TEST_F(PrefetcherTest, SetWindowNamesAnUnknownSignature) {
  EXPECT_EQ(error_of_set_window(0), "expected a signature with a plan, got model 1, 1 tokens, mode decode");
  EXPECT_THROW(prefetcher->device_of(signature), std::invalid_argument);
}

TEST_F(PrefetcherTest, SetWindowNamesACollectiveWithoutAWindow) {
  eager();
  EXPECT_EQ(error_of_set_window(2), "expected a collective index that has a window, got 2");
  EXPECT_EQ(error_of_set_window(-1), "expected a collective index that has a window, got -1");
}

TEST_F(PrefetcherTest, APatchThatFailsChangesNoSetting) {
  eager();
  backend.failing_verb = "patch_table";
  EXPECT_THROW(set_window(0, 0), BackendError);
  EXPECT_EQ(state().settings()[0].byte_limit, 128);
  EXPECT_FALSE(state().latched_off());
}

TEST_F(PrefetcherTest, SettingsAreCarriedAcrossARelearnOfTheSameStructure) {
  learn_one(0x1000);
  set_window(0, 16, Form::kLines);
  learn_one(0x2000);
  EXPECT_EQ(state().plan()->windows[0].segments[0].address, 0x2000u);
  EXPECT_EQ(state().settings()[0], (WindowSetting{16, Form::kLines}));
}

TEST_F(PrefetcherTest, DeviceOfAPlanIsItsCollectives) {
  main = place(3);
  eager();
  EXPECT_EQ(prefetcher->device_of(signature), 3);
}

TEST_F(PrefetcherTest, RelearningTheSameMakesNoNewTableIn100Rounds) {
  for (int round = 0; round < 100; ++round) eager();
  EXPECT_EQ(backend.num_verbs("make_table"), 1);
  EXPECT_EQ(state().num_eager(), 100);
}

TEST_F(PrefetcherTest, RelearningAnotherReleasesTheOldTableAndItsWeightsEachOf100Rounds) {
  std::vector<std::weak_ptr<const void>> owners;
  for (uintptr_t round = 1; round <= 100; ++round) owners.push_back(learn_one(0x1000 * round));
  ASSERT_EQ(backend.tables.size(), 100u);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(backend.tables[i].expired(), i != 99);
    EXPECT_EQ(owners[i].expired(), i != 99);
  }
}

TEST_F(PrefetcherTest, InvalidateReleasesTableAndWeights) {
  const auto owner = learn_one(0x1000);
  prefetcher->invalidate();
  EXPECT_TRUE(backend.tables[0].expired());
  EXPECT_TRUE(owner.expired());
}

TEST_F(PrefetcherTest, TheOwnerOfReleasedWeightsMayCallThePrefetcher) {
  int num_released = 0;
  const auto learn_from_a_curious_owner = [&](uintptr_t address) {
    const auto look = [&](void*) {
      prefetcher->for_each([&](const Signature&, const SignatureState&) { ++num_released; });
    };
    run({{CollectiveKind::kAllReduce, {Segment{address, 64, std::shared_ptr<void>(nullptr, look)}}}});
  };
  learn_from_a_curious_owner(0x1000);
  learn_from_a_curious_owner(0x2000);
  EXPECT_EQ(num_released, 1) << "by learning again";
  prefetcher->invalidate();
  EXPECT_EQ(num_released, 2);
}

TEST_F(PrefetcherTest, TheEndOfThePrefetcherReleasesTableAndWeights) {
  const auto owner = learn_one(0x1000);
  prefetcher.reset();
  EXPECT_TRUE(backend.tables[0].expired());
  EXPECT_TRUE(owner.expired());
}

TEST_F(PrefetcherTest, ATableThatAGraphHoldsSurvivesInvalidateAndThePrefetcher) {
  const auto owner = learn_one(0x1000);
  capture(std::vector<Step>(1));
  prefetcher->invalidate();
  learn_one(0x2000);
  prefetcher.reset();
  EXPECT_FALSE(backend.tables[0].expired());
  EXPECT_FALSE(owner.expired()) << "the graph reads these weights";
  EXPECT_TRUE(backend.tables[1].expired());
  backend.graph.clear();
  EXPECT_TRUE(backend.tables[0].expired());
  EXPECT_TRUE(owner.expired());
}

TEST_F(PrefetcherTest, ATableHeldElsewhereSurvivesARelearn) {
  const auto owner = learn_one(0x1000);
  auto held = state().table();
  learn_one(0x2000);
  EXPECT_FALSE(owner.expired());
  held.reset();
  EXPECT_TRUE(owner.expired());
}

TEST_F(PrefetcherTest, AfterInvalidateTheNextEagerForwardLearnsAgain) {
  eager();
  capture();
  prefetcher->invalidate();
  EXPECT_CONTAINS("invalidated", reason());
  eager();
  EXPECT_EQ(state().state(), State::kPlanned);
  capture();
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_EQ(reason(), "");
}

TEST_F(PrefetcherTest, SignaturesLearnApart) {
  eager();
  signature.num_tokens = 2;
  learn_one(0x7000);
  EXPECT_EQ(state().plan()->num_collectives(), 1);
  signature.num_tokens = 1;
  EXPECT_EQ(state().plan()->num_collectives(), 3);
}

}  // namespace
}  // namespace l2pf
