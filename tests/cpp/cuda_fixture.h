#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cuda/captures.h"
#include "cuda/cuda_backend.h"
#include "cuda/emulated_collective.h"

// A real device, its memory and streams, and a way to see that a prefetch ran.
namespace l2pf::testing_support {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t num_bytes) : num_bytes_(num_bytes) {
    L2PF_CUDA_CHECK(cudaMalloc(&data_, num_bytes));
    L2PF_CUDA_CHECK(cudaMemset(data_, 0, num_bytes));
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  void* data_ = nullptr;
  size_t num_bytes_;
};

class CudaStream {
 public:
  CudaStream() { L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  operator cudaStream_t() const { return stream_; }
  Place place() const { return {0, stream_}; }
  void synchronize() const { L2PF_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A stream that goes no further until the gate opens or goes; after ten seconds a test that hangs has failed anyway.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    const auto wait = [](void* raw) {
      const std::unique_ptr<std::future<void>> opened(static_cast<std::future<void>*>(raw));
      opened->wait_for(std::chrono::seconds(10));
    };
    L2PF_CUDA_CHECK(cudaLaunchHostFunc(stream, wait, new std::future<void>(opened_.get_future())));
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

template <typename T>
T read_device(const void* address) {
  T value{};
  L2PF_CUDA_CHECK(cudaMemcpy(&value, address, sizeof(T), cudaMemcpyDeviceToHost));
  return value;
}

class CudaFixture : public ::testing::Test {
 protected:
  static constexpr int64_t kMiB = 1 << 20;

  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0) return;
    if (const char* required = std::getenv("L2PF_REQUIRE_CUDA"); required && std::string(required) == "1")
      FAIL() << "expected a CUDA device, got none";
    GTEST_SKIP() << "no CUDA device";
  }

  CudaBackend& backend() { return CudaBackend::instance(); }

  // A plan with one window for each list of segments.
  static std::shared_ptr<const Plan> plan_of(const std::vector<std::vector<Segment>>& windows) {
    Recording recording;
    for (const auto& segments : windows) {
      recording.open_collective(CollectiveKind::kAllReduce, 0);
      for (const auto& segment : segments) recording.add_segment(segment, 0);
    }
    return std::make_shared<const Plan>(make_plan(recording, {}));
  }
  // One whole window for each list of segments, enqueued on `stream`.
  std::shared_ptr<CudaTable> table_of(const std::vector<std::vector<Segment>>& windows, const CudaStream& stream) {
    const auto plan = plan_of(windows);
    std::vector<WindowSetting> settings;
    for (const Window& window : plan->windows) settings.push_back({window.num_bytes, Form::kAuto});
    return std::static_pointer_cast<CudaTable>(backend().make_table(plan, settings, stream.place()));
  }

  // Rewrites a window's head so that its tickets tell of its prefetches. load_both draws tickets, and a last CTA that
  // never comes leaves them as they are. Every SM counts as partition 0. Keeps the byte limit.
  void watch(const CudaTable& table, int window_index) {
    auto head = read_device<WindowHead>(table.window(window_index));
    head.header.form = static_cast<int32_t>(Form::kLoadBoth);
    head.header.num_ctas = table.shape().num_ctas + 1;
    head.header.partition_of_sm = one_partition().address();
    head.tickets = {};
    L2PF_CUDA_CHECK(cudaMemcpy(table.window(window_index), &head, sizeof(head), cudaMemcpyHostToDevice));
    // A copy from pageable memory returns before it has arrived, and no other stream waits for it.
    L2PF_CUDA_CHECK(cudaDeviceSynchronize());
  }
  // CTAs of a watched window that finished since `watch`.
  static uint32_t num_ctas_done(const CudaTable& table, int window_index) {
    return read_device<WindowHead>(table.window(window_index)).tickets.num_ctas_done;
  }

  void collective(const CudaStream& stream) {
    EmulatedCollective::instance().launch(collective_data().data(), 4096, 0, 4, stream.place());
  }

 private:
  // Made at first use: a fixture is constructed where there is no device too.
  DeviceMemory& one_partition() {
    if (!one_partition_) one_partition_ = std::make_unique<DeviceMemory>(backend().num_sms(0));
    return *one_partition_;
  }
  DeviceMemory& collective_data() {
    if (!collective_data_) collective_data_ = std::make_unique<DeviceMemory>(4096);
    return *collective_data_;
  }

  std::unique_ptr<DeviceMemory> one_partition_;
  std::unique_ptr<DeviceMemory> collective_data_;
};

}  // namespace l2pf::testing_support
