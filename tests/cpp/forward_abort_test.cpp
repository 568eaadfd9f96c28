#include "forward_fixture.h"

// Forwards whose model raised: joined like any other, and nothing is learned from them.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::weight;

using ForwardAbortTest = ForwardFixture;

TEST_F(ForwardAbortTest, AnAbortedForwardTeachesNothing) {
  ASSERT_TRUE(begin());
  collective(CollectiveKind::kAllReduce, {weight(0x1000)});
  abort_forward();
  EXPECT_EQ(state().state(), State::kUnlearned);
  EXPECT_EQ(state().num_eager(), 0);
  EXPECT_TRUE(backend.verbs.empty());
}

TEST_F(ForwardAbortTest, AnAbortedForwardKeepsTheEarlierPlanAndIsJoined) {
  eager();
  backend.take_verbs();
  ASSERT_TRUE(begin());
  collective(steps[0].kind, {weight(0x9000)});
  EXPECT_TRUE(outstanding());
  abort_forward();
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(state().state(), State::kPlanned);
  EXPECT_EQ(state().plan()->windows[0].segments, steps[0].weights);
  EXPECT_EQ(state().num_eager(), 1);
}

TEST_F(ForwardAbortTest, AnAbortedCaptureDoesNotFreezeAndItsNodesAreJoined) {
  eager();
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  abort_forward();
  EXPECT_EQ(backend.verbs.back(), "join 0@1");
  backend.captures.clear();
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(state().state(), State::kPlanned);
  EXPECT_EQ(state().num_captures(), 0);
  capture();
  EXPECT_EQ(state().state(), State::kFrozen);
  EXPECT_EQ(reason(), "");
}

TEST_F(ForwardAbortTest, AStrictPrefetcherDoesNotRaiseOnTopOfTheModelsError) {
  use({.strict = true});
  backend.captures[1] = kCapture;
  ASSERT_TRUE(begin());
  collective(steps[0].kind);
  EXPECT_NO_THROW(abort_forward());
  backend.captures.clear();
}

TEST_F(ForwardAbortTest, ANestedAbortClosesTheInnerForwardOnly) {
  ASSERT_TRUE(begin());
  EXPECT_FALSE(begin());
  abort_forward();  // caught by the model, which goes on
  for (const auto& step : steps) collective(step.kind, step.weights);
  end_forward();
  EXPECT_EQ(state().state(), State::kPlanned);
}

TEST_F(ForwardAbortTest, AnAbortWithoutABeginDoesNothing) {
  abort_forward();
  signature.mode = "extend";
  EXPECT_FALSE(begin());
  abort_forward();
  signature.mode = "decode";
  EXPECT_TRUE(begin());
  end_forward();
}

}  // namespace
}  // namespace l2pf
