#include "forward_fixture.h"

// Every call of every backend verb fails once, in turn, over the whole life of a signature: learn, prefetch, capture,
// prefetch. The forwards go on, the failure is reported, nothing stays outstanding, and the signature is latched off.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;

class FaultTest : public ForwardFixture, public ::testing::WithParamInterface<std::string> {
 protected:
  static constexpr int kNumEager = 4;

  void whole_life() {
    backend.timed_us = 4;
    for (int i = 0; i < kNumEager - 1; ++i) complete([&] { eager(); });
    complete([&] { capture(); });
    complete([&] { eager(); });
  }

  // Number of calls that could fail, one life each.
  int fail_each_call_of(const std::string& verb) {
    for (int num_spared = 0;; ++num_spared) {
      SCOPED_TRACE(verb + ", call " + std::to_string(num_spared));
      prefetcher = std::make_shared<Prefetcher>(PrefetcherOptions{});
      signature = {1, 1, "decode"};
      backend.failing_verb = verb;
      backend.num_calls_spared = num_spared;
      backend.num_failures_left = 1;
      backend.take_verbs();
      whole_life();
      if (backend.num_failures_left == 1) return num_spared;

      EXPECT_TRUE(state().latched_off());
      EXPECT_EQ(reason(), "latched off: " + verb + " failed");
      EXPECT_EQ(state().num_eager(), kNumEager);
      EXPECT_EQ(state().num_captures(), 1);
      EXPECT_EQ(state().state(), State::kFrozen);
      expect_quiet();
      expect_another_signature_works();
      if (HasFailure()) return num_spared;
    }
  }

 private:
  template <typename Forward>
  void complete(const Forward& forward) {
    EXPECT_NO_THROW(forward());
    EXPECT_EQ(current_forward(), nullptr);
    EXPECT_FALSE(outstanding());
  }
  void expect_quiet() {
    backend.take_verbs();
    eager();
    capture();
    EXPECT_TRUE(backend.verbs.empty()) << "latched off";
  }
  void expect_another_signature_works() {
    signature.num_tokens = 2;
    eager();
    backend.take_verbs();
    eager();
    EXPECT_EQ(backend.num_verbs("fork"), 2);
    EXPECT_EQ(reason(), "");
  }
};

TEST_P(FaultTest, FailsOnceAndIsReportedOnce) { EXPECT_GT(fail_each_call_of(GetParam()), 0) << "it was never called"; }

INSTANTIATE_TEST_SUITE_P(EveryVerb, FaultTest,
                         ::testing::Values("device_info", "auto_budget_bytes", "capture_id", "make_table",
                                           "patch_table", "fork", "mark", "attach", "join", "start_timer", "stop_timer",
                                           "elapsed_us"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace l2pf
