#include <sys/wait.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "cuda_graph_view.h"
#include "fake_cuda_fixture.h"

// Threads, captures, devices and processes that share the real backend. Built with L2PF_SANITIZE=thread these find
// races.
namespace l2pf {
namespace {

using testing_support::FakeCudaFixture;
using testing_support::GraphView;
using testing_support::Model;
using testing_support::new_cuda_backend;

constexpr int kNumThreads = 8;
constexpr int kNumRounds = 20;

class FakeCudaConcurrencyTest : public FakeCudaFixture {
 protected:
  void TearDown() override {
    Graveyard::instance().drain();
    EXPECT_EQ(fake_cuda::live().user_objects, 0);
    EXPECT_EQ(Captures::instance().size(), 0u);
    FakeCudaFixture::TearDown();
  }

  static void in_threads(int num_threads, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back(work, i);
    for (auto& thread : threads) thread.join();
  }
  static void expect_nothing_outstanding(CudaBackend& backend, int num_devices = 1) {
    for (DeviceIndex device = 0; device < num_devices; ++device) EXPECT_FALSE(Outstanding::of(backend).any(device));
  }
  static void expect_whole(const Model& model) {
    EXPECT_EQ(model.state().reason(), "");
    EXPECT_EQ(model.state().state(), State::kFrozen);
    EXPECT_EQ(GraphView(model.graph()).nodes_named("l2pf_prefetch").size(), 3u);
  }
};

TEST_F(FakeCudaConcurrencyTest, EightThreadsLearnCaptureAndReplayOnOneDevice) {
  CudaBackend& backend = new_cuda_backend();
  in_threads(kNumThreads, [&](int i) {
    Model model(backend, 0, i);
    for (int round = 0; round < kNumRounds; ++round) model.eager();
    for (int round = 0; round < kNumRounds; ++round) {
      model.capture(cudaStreamCaptureModeRelaxed);
      model.replay();
      model.eager();
    }
    expect_whole(model);
  });
  expect_nothing_outstanding(backend);
}

TEST_F(FakeCudaConcurrencyTest, EagerForwardsAndFirstUsesLeaveACaptureInGlobalModeAlone) {
  CudaBackend& backend = new_cuda_backend();
  Model captured(backend, 0, 1);
  captured.eager();
  captured.eager();
  std::barrier open(2), done(2);
  std::thread beside([&] {
    open.arrive_and_wait();
    CudaBackend& other = new_cuda_backend();
    Model first(other, 1, 2);
    for (int i = 0; i < 4; ++i) first.eager();
    Model second(backend, 0, 3);
    for (int i = 0; i < 4; ++i) second.eager();
    EXPECT_EQ(first.state().reason(), "");
    EXPECT_EQ(second.state().reason(), "");
    done.arrive_and_wait();
  });
  int num_waits = 0;
  captured.capture(cudaStreamCaptureModeGlobal, [&] {
    if (num_waits++ > 0) return;
    open.arrive_and_wait();
    done.arrive_and_wait();
  });
  beside.join();
  expect_whole(captured);
}

TEST_F(FakeCudaConcurrencyTest, TwoCapturesAtOnceKeepTheirNodesApart) {
  CudaBackend& backend = new_cuda_backend();
  std::barrier both_open(2);
  in_threads(2, [&](int i) {
    Model model(backend, 0, i);
    model.eager();
    model.eager();
    model.capture(cudaStreamCaptureModeRelaxed, [&] { both_open.arrive_and_wait(); });
    expect_whole(model);
    both_open.arrive_and_wait();
  });
}

TEST_F(FakeCudaConcurrencyTest, EachDeviceHasItsOwnSideStream) {
  constexpr int kNumGpus = 4;
  fake_cuda::reset(kNumGpus);
  CudaBackend& backend = new_cuda_backend();
  const int num_streams = fake_cuda::live().streams;
  in_threads(kNumThreads, [&](int i) {
    Model model(backend, i % kNumGpus, i);
    for (int round = 0; round < kNumRounds; ++round) model.eager();
    model.capture();
    model.replay();
    expect_whole(model);
  });
  expect_nothing_outstanding(backend, kNumGpus);
  EXPECT_EQ(fake_cuda::live().streams, num_streams + kNumGpus);
  EXPECT_EQ(num_prefetches(fake_cuda::take_kernel_runs()), kNumThreads * 3 * kNumRounds);
}

TEST_F(FakeCudaConcurrencyTest, InvalidateAndSetWindowRunBesideForwardsAndCaptures) {
  CudaBackend& backend = new_cuda_backend();
  Model model(backend, 0);
  std::atomic<bool> is_done = false;
  std::thread beside([&] {
    cudaStream_t stream = nullptr;
    L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; !is_done; ++i) {
      if (i % 10 == 9) model.prefetcher().invalidate();
      try {
        model.prefetcher().set_window(model.signature(), i % 3, 1024 * (i % 4), {}, backend, {0, stream});
      } catch (const std::invalid_argument&) {  // not learned just now
      }
    }
    cudaStreamDestroy(stream);
  });
  for (int round = 0; round < kNumRounds; ++round) {
    for (int i = 0; i < 3; ++i) model.eager();
    model.capture(cudaStreamCaptureModeGlobal);
    model.replay();
  }
  is_done = true;
  beside.join();
  EXPECT_FALSE(model.state().latched_off()) << model.state().reason();
}

// Runs `work` in a child; true when nothing failed there.
bool in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(FakeCudaConcurrencyTest, AChildForkedBeforeTheFirstUsePrefetches) {
  fake_cuda::forget_process();
  EXPECT_TRUE(in_child([] {
    Model model(new_cuda_backend(), 0);
    for (int i = 0; i < 3; ++i) model.eager();
    model.capture();
    expect_whole(model);
  }));
}

// CUDA works in no child of a process that used it. The child's own forwards go on, on the CPU say, and say why.
TEST_F(FakeCudaConcurrencyTest, AChildForkedAfterTheFirstUseLatchesOff) {
  CudaBackend& backend = new_cuda_backend();
  const auto prefetcher = std::make_shared<Prefetcher>(PrefetcherOptions{});
  const Signature signature{1, 1, "decode"};
  const auto forward = [&] {
    ASSERT_TRUE(begin_forward(1, prefetcher, signature, false));
    current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, {0, nullptr});
    current_forward()->collective_end(backend, {0, nullptr});
    current_forward()->record_weight(Segment{0x1000, 64, {}}, 0);
    end_forward();
  };
  forward();
  forward();
  EXPECT_TRUE(in_child([&] {
    forward();
    forward();
    prefetcher->for_each([](const Signature&, const SignatureState& state) {
      EXPECT_TRUE(state.latched_off());
      EXPECT_NE(state.reason().find("cudaErrorInitializationError"), std::string::npos) << state.reason();
    });
  }));
  forward();
  prefetcher->for_each([](const Signature&, const SignatureState& state) { EXPECT_EQ(state.reason(), ""); });
}

}  // namespace
}  // namespace l2pf
