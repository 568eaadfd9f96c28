#include "forward_fixture.h"

// Weights whose owner was emptied after they were recorded: their windows are left out.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;

class BackedTest : public ForwardFixture {
 protected:
  // Two windows; the second one's weight is backed while `*backed` says so.
  BackedTest() {
    Segment second{0x3000, 64, backed};
    second.backed_by_owner = [](const Segment& segment) { return *static_cast<const bool*>(segment.owner.get()); };
    steps = {{CollectiveKind::kAllReduce, {testing_support::weight(0x1000)}}, {CollectiveKind::kAllReduce, {second}}};
  }
  std::shared_ptr<bool> backed = std::make_shared<bool>(true);
};

TEST_F(BackedTest, EveryWindowIsLaunchedWhileItsWeightsAreThere) {
  eager();
  eager();
  EXPECT_EQ(state().num_launched(), 2);
}

TEST_F(BackedTest, AnEagerForwardLeavesOutAWindowWhoseWeightsAreGone) {
  eager();
  *backed = false;
  backend.take_verbs();
  eager();
  EXPECT_EQ(backend.num_verbs("fork"), 1);
  EXPECT_EQ(state().num_launched(), 1);
  EXPECT_FALSE(state().latched_off());
  *backed = true;
  eager();
  EXPECT_EQ(state().num_launched(), 2);
}

TEST_F(BackedTest, WeightsThatLieWhereTheEmptiedOnesWereAreLearnedAnew) {
  eager();
  *backed = false;
  steps[1].weights = {testing_support::weight(0x3000)};
  ASSERT_EQ(steps[1].weights[0].num_bytes, 64) << "else the recording differs anyway";
  eager();
  EXPECT_EQ(state().num_launched(), 1);
  eager();
  EXPECT_EQ(state().num_launched(), 2);
}

TEST_F(BackedTest, ACaptureGetsNoNodeForItAndSaysSo) {
  eager();
  *backed = false;
  backend.take_verbs();
  capture();
  EXPECT_EQ(backend.num_verbs("attach"), 1);
  EXPECT_EQ(reason(), "the weights of 1 of 2 windows were freed or moved: call invalidate() and capture again");
}

TEST_F(BackedTest, APrefixKeepsTheCheck) {
  const auto cut = cut_to_budget(steps[1].weights, 32);
  EXPECT_EQ(cut[0].num_bytes, 32);
  EXPECT_TRUE(cut[0].is_backed());
  *backed = false;
  EXPECT_FALSE(cut[0].is_backed());
}

}  // namespace
}  // namespace l2pf
