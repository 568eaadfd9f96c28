#include "forward_fixture.h"

// Automatic budgets follow the lengths of the collectives, measured in eager forwards.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::Verbs;
using testing_support::weight;

class WindowLengthTest : public ForwardFixture {
 protected:
  std::vector<int64_t> byte_limits() const {
    std::vector<int64_t> limits;
    const SignatureState now = state();
    for (const auto& setting : now.settings()) limits.push_back(setting.byte_limit);
    return limits;
  }
};

TEST_F(WindowLengthTest, BudgetsArePatchedOnceTheLengthsAreKnown) {
  backend.timed_us = 4;  // at 16 bytes a microsecond
  eager();
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{128, 128})) << "the timers are not read by their own forward";
  backend.take_verbs();
  eager();
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(state().window_us(0), 4);
  EXPECT_EQ(backend.num_verbs("patch_table"), 2);
  EXPECT_EQ(backend.num_verbs("make_table"), 0);
}

TEST_F(WindowLengthTest, TheSecondForwardReplacesWhatTheFirstMeasuredAndNoLaterOneMeasures) {
  backend.timed_us = 4;
  eager();
  eager();
  backend.timed_us = 2;
  backend.failing_verb = "start_timer";
  eager();
  eager();
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{32, 32}));
  EXPECT_FALSE(state().latched_off()) << "no timer is started any more";
}

TEST_F(WindowLengthTest, TimersThatAreNotDoneAreAskedAgainByTheNextForward) {
  eager();
  eager();
  EXPECT_EQ(backend.num_verbs("patch_table"), 0);
  backend.timed_us = 4;
  eager();
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{64, 64}));
}

TEST_F(WindowLengthTest, AFixedBudgetStartsNoTimer) {
  use({.budget_bytes = 96});
  backend.failing_verb = "start_timer";
  eager();
  eager();
  EXPECT_FALSE(state().latched_off());
}

TEST_F(WindowLengthTest, ACaptureStartsNoTimer) {
  eager();
  backend.failing_verb = "start_timer";
  capture();
  EXPECT_FALSE(state().latched_off());
}

TEST_F(WindowLengthTest, AWindowThatSomeoneSetKeepsItsBudget) {
  eager();
  prefetcher->set_window(signature, 0, 16, {}, backend, main);
  backend.timed_us = 4;
  eager();
  eager();
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{16, 64}));
}

TEST_F(WindowLengthTest, OtherCollectivesAreMeasuredAnew) {
  backend.timed_us = 4;
  eager();
  eager();
  steps = {{CollectiveKind::kBroadcast, {weight(0x1000, 256)}}};
  backend.timed_us = 8;
  eager();
  EXPECT_EQ(state().window_us(0), 0);
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{256})) << "not by the lengths of the others";
  eager();
  eager();
  EXPECT_EQ(state().window_us(0), 8);
  EXPECT_EQ(byte_limits(), (std::vector<int64_t>{128}));
}

}  // namespace
}  // namespace l2pf
