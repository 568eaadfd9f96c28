#include <algorithm>
#include <tuple>

#include "fake_cuda_fixture.h"

// Every CUDA call of ours fails once, in turn, over the whole life of a signature on the real backend: first use,
// learn, prefetch, capture, replay, prefetch. The model's kernels all run, the failure is reported once and leaves no
// error behind, no capture is invalidated, and in the end everything is given back.
namespace l2pf {
namespace {

using fake_cuda::Lasting;
using fake_cuda::Live;
using testing_support::FakeCudaFixture;
using testing_support::Model;
using testing_support::new_cuda_backend;
using testing_support::OurLines;

struct Setting {
  DeviceIndex device = 0;  // 1: not the thread's current one
  bool is_deferred = false;
  Lasting lasting = Lasting::kOnce;
  int major = 9;  // 8: no launch-order edges
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << "device " << s.device << (s.is_deferred ? ", deferred" : "")
       << (s.lasting == Lasting::kForGood ? ", for good" : "") << ", sm_" << s.major << "0";
}

class FakeCudaFaultTest : public FakeCudaFixture, public ::testing::WithParamInterface<Setting> {
 protected:
  static constexpr int kNumEager = 4;

  void SetUp() override {
    FakeCudaFixture::SetUp();
    fake_cuda::reset(kNumDevices, GetParam().major);
    fake_cuda::set_deferred(GetParam().is_deferred);
  }

  static void whole_life(Model& model, CudaBackend& backend) {
    for (int i = 0; i < kNumEager - 1; ++i) {
      model.eager();
      EXPECT_FALSE(Outstanding::of(backend).any(GetParam().device));
    }
    model.capture();
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_FALSE(Outstanding::of(backend).any(GetParam().device));
    model.replay();
    model.eager();
    EXPECT_FALSE(Outstanding::of(backend).any(GetParam().device));
  }
  static void expect_all_model_kernels(int num_forwards) {
    std::vector<std::string> expected;
    for (int i = 0; i < 3 * num_forwards; ++i) expected.insert(expected.end(), {"collective", "gemm"});
    EXPECT_EQ(take_model_kernels(), expected);
  }

  // What is alive once the model is gone and another one has run: what a backend keeps for the life of the process.
  static Live kept_by(CudaBackend& backend) {
    const Live before = fake_cuda::live();
    {
      Model other(backend, GetParam().device, 2);
      whole_life(other, backend);
      EXPECT_EQ(other.state().reason(), "");
    }
    Graveyard::instance().drain();
    Live kept = fake_cuda::live();
    EXPECT_EQ(kept.user_objects, before.user_objects);
    fake_cuda::take_kernel_runs();
    return kept;
  }

  // True when a call failed.
  bool life_with_failing_call(int64_t call_index) {
    CudaBackend& backend = new_cuda_backend();
    const Live before = fake_cuda::live();
    const size_t num_captures = Captures::instance().size();
    std::vector<std::weak_ptr<const void>> owners;
    bool has_failed = false;
    {
      Model model(backend, GetParam().device);
      OurLines lines;
      fake_cuda::fail_call(call_index, cudaErrorIllegalAddress, GetParam().lasting);
      whole_life(model, backend);
      has_failed = !fake_cuda::failed_call().empty();
      expect_reported(model.state(), lines.take(), has_failed);
      fake_cuda::fail_no_call();
      expect_all_model_kernels(kNumEager + 1);
      owners = model.take_owners();
      model.forget_prefetcher();
    }
    Graveyard::instance().drain();
    for (const auto& owner : owners) EXPECT_TRUE(owner.expired()) << "a weight is held for ever";
    EXPECT_EQ(Captures::instance().size(), num_captures);
    const Live kept = kept_by(backend);
    EXPECT_EQ(kept.streams, before.streams + 1) << "the side stream";
    EXPECT_EQ(kept.events, before.events + 1) << "the one that orders it";
    EXPECT_EQ(kept.graphs, before.graphs);
    EXPECT_EQ(kept.user_objects, before.user_objects);
    EXPECT_LE(kept.allocations, before.allocations + 1) << "one table's block, used again";
    return has_failed;
  }

  static void expect_reported(const SignatureState& state, const std::vector<std::string>& lines, bool has_failed) {
    EXPECT_EQ(state.num_eager(), kNumEager);
    EXPECT_EQ(state.num_captures(), 1);
    EXPECT_EQ(state.state(), State::kFrozen);
    if (!has_failed) {
      EXPECT_EQ(state.reason(), "");
      EXPECT_EQ(lines.size(), 0u);
      return;
    }
    if (GetParam().lasting == Lasting::kForGood) {
      EXPECT_TRUE(state.latched_off() || !lines.empty());
      return;
    }
    EXPECT_EQ(lines.size() + (state.latched_off() ? 1 : 0), 1u) << "reported once";
    const std::string& report = state.latched_off() ? state.reason() : lines.empty() ? "" : lines[0];
    EXPECT_NE(report.find("cudaErrorIllegalAddress"), std::string::npos) << report;
    const std::string call = fake_cuda::failed_call();
    const std::vector<std::string> names =
        call == "cudaLaunchKernel"        ? std::vector<std::string>{"launch_prefetch", "launch_spin"}
        : call == "cudaGraphAddNode"      ? std::vector<std::string>{"add_prefetch_node"}
        : call == "cudaFuncGetAttributes" ? std::vector<std::string>{"footprint_of_prefetch"}
                                          : std::vector<std::string>{call};
    EXPECT_TRUE(std::ranges::any_of(names, [&](const auto& name) { return report.find(name) != std::string::npos; }))
        << report;
  }
};

TEST_P(FakeCudaFaultTest, EveryCallFailsOnceAndTheModelNeverNotices) {
  int64_t call_index = 0;
  while (true) {
    const bool has_failed = life_with_failing_call(call_index);
    if (HasFailure()) FAIL() << "call " << call_index << ", " << fake_cuda::failed_call();
    if (!has_failed) break;
    ++call_index;
  }
  RecordProperty("num_calls", static_cast<int>(call_index));
  std::cout << call_index << " calls failed in turn\n";
  EXPECT_GT(call_index, 100);
}

INSTANTIATE_TEST_SUITE_P(Settings, FakeCudaFaultTest,
                         ::testing::Values(Setting{}, Setting{.device = 1}, Setting{.is_deferred = true},
                                           Setting{.major = 8}, Setting{.lasting = Lasting::kForGood},
                                           Setting{.device = 1, .lasting = Lasting::kForGood}));

}  // namespace
}  // namespace l2pf
