#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/captures.h"
#include "cuda/cuda_backend.h"
#include "cuda/device_scope.h"
#include "cuda/graveyard.h"
#include "fake_cudart/fake_cudart.h"
#include "forward.h"

// The real CUDA backend on a runtime without a GPU.
namespace l2pf::testing_support {

// Never destroyed, as the process's own one is not; a test that needs a first use takes a new one.
inline CudaBackend& new_cuda_backend() {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<CudaBackend>>;
  const std::lock_guard lock(mutex);
  return *all.emplace_back(std::make_unique<CudaBackend>());
}

// Runs what an operator of ours does: its calls count, and it leaves the thread as it was, without an error in it.
template <typename Operator>
void ours(const Operator& op) {
  int device_before = 0;
  cudaGetDevice(&device_before);
  {
    const fake_cuda::CountedScope counted;
    op();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next call of someone else would report it";
  int device = 0;
  cudaGetDevice(&device);
  EXPECT_EQ(device, device_before);
  auto mode = cudaStreamCaptureModeGlobal;
  cudaThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

// A model of three collectives on one stream: its kernels, and our operators between them.
class Model {
 public:
  Model(CudaBackend& backend, DeviceIndex device, int64_t number = 1)
      : backend_(backend), device_(device), signature_{number, 1, "decode"} {
    const DeviceScope scope(device);
    L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (uintptr_t i = 0; i < 3; ++i) weights_.push_back({0x100000 * (i + 1), 4096, std::make_shared<int>(0)});
  }
  ~Model() {
    forget_graph();
    cudaStreamDestroy(stream_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  void eager() {
    forward(false);
    L2PF_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  // `between` runs while the capture is open.
  void capture(
      cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal, const std::function<void()>& between = [] {}) {
    forget_graph();
    L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream_, mode));
    between();
    forward(true);
    between();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess) << "the capture was invalidated";
    L2PF_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void replay() {
    const DeviceScope scope(device_);
    L2PF_CUDA_CHECK(cudaGraphLaunch(exec_, stream_));
    L2PF_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void forget_graph() {
    if (exec_) cudaGraphExecDestroy(std::exchange(exec_, nullptr));
    if (graph_) cudaGraphDestroy(std::exchange(graph_, nullptr));
  }
  void forget_prefetcher() { prefetcher_.reset(); }

  SignatureState state() const {
    SignatureState found;
    prefetcher_->for_each([&](const Signature& key, const SignatureState& value) {
      if (key == signature_) found = value;
    });
    return found;
  }
  Prefetcher& prefetcher() { return *prefetcher_; }
  const Signature& signature() const { return signature_; }
  Place place() const { return {device_, stream_}; }
  cudaGraph_t graph() const { return graph_; }
  std::vector<std::weak_ptr<const void>> take_owners() {
    std::vector<std::weak_ptr<const void>> owners;
    for (const auto& segment : std::exchange(weights_, {})) owners.push_back(segment.owner);
    return owners;
  }

 private:
  void kernel(const char* name) {
    const DeviceScope scope(device_);
    ASSERT_EQ(fake_cuda::launch_kernel(name, stream_), cudaSuccess);
  }
  void forward(bool capturing) {
    ours([&] { ASSERT_TRUE(begin_forward(1, prefetcher_, signature_, capturing)); });
    for (const Segment& weight : weights_) {
      ours([&] { current_forward()->collective_begin(CollectiveKind::kAllReduce, backend_, place()); });
      kernel("collective");
      ours([&] {
        current_forward()->collective_end(backend_, place());
        current_forward()->record_weight(weight, device_);
      });
      kernel("gemm");
    }
    ours([] { EXPECT_NO_THROW(end_forward()); });
    EXPECT_EQ(current_forward(), nullptr);
  }

  CudaBackend& backend_;
  const DeviceIndex device_;
  const Signature signature_;
  std::shared_ptr<Prefetcher> prefetcher_ = std::make_shared<Prefetcher>(PrefetcherOptions{});
  std::vector<Segment> weights_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

class FakeCudaFixture : public ::testing::Test {
 protected:
  static constexpr int kNumDevices = 2;
  void SetUp() override {
    fake_cuda::reset(kNumDevices);
    L2PF_CUDA_CHECK(cudaSetDevice(0));
  }
  void TearDown() override {
    fake_cuda::fail_no_call();
    EXPECT_EQ(current_forward(), nullptr) << "a forward is left open";
    EXPECT_EQ(fake_cuda::num_forbidden_calls(), 0) << "a user object's destructor called CUDA";
  }

  static std::vector<std::string> take_model_kernels() {
    std::vector<std::string> names;
    for (const auto& run : fake_cuda::take_kernel_runs())
      if (run.name.find("l2pf_") == std::string::npos) names.push_back(run.name);
    return names;
  }
  static int64_t num_prefetches(const std::vector<fake_cuda::KernelRun>& runs) {
    return std::count_if(runs.begin(), runs.end(),
                         [](const auto& run) { return run.name.find("l2pf_prefetch") != std::string::npos; });
  }
};

// Lines on stderr from us.
class OurLines {
 public:
  OurLines() { ::testing::internal::CaptureStderr(); }
  std::vector<std::string> take() {
    std::vector<std::string> lines;
    std::istringstream text(::testing::internal::GetCapturedStderr());
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("dsv41_l2pf: ")) lines.push_back(line);
    return lines;
  }
};

}  // namespace l2pf::testing_support
