#include "cuda/cuda_backend.h"

#include <chrono>
#include <thread>

#include "cuda_fixture.h"

// Eager code on a real device: tables, fork and join, timers, what calibration applies.
namespace l2pf {
namespace {

using testing_support::CudaFixture;
using testing_support::CudaStream;
using testing_support::DeviceMemory;
using testing_support::Gate;
using testing_support::read_device;

class CudaBackendTest : public CudaFixture {
 protected:
  // 4 GiB of loads from 64 MiB: longer than what the host does meanwhile.
  static std::vector<Segment> long_window(const DeviceMemory& weights) {
    std::vector<Segment> segments;
    for (int i = 0; i < 64; ++i)
      segments.push_back({weights.address() + static_cast<uintptr_t>(i) * 16, 64 * kMiB - 64 * 16, nullptr});
    return segments;
  }
};

TEST_F(CudaBackendTest, ATableHoldsEachWindowsHeadAndSegments) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const uintptr_t base = weights.address();
  const auto table = table_of({{{base, 4096, {}}, {base + 8192, 256, {}}}, {{base + 512, 16, {}}}}, stream);
  stream.synchronize();

  const auto head = read_device<WindowHead>(table->window(0));
  EXPECT_EQ(head.header.byte_limit, 4096 + 256);
  EXPECT_NE(head.header.form, static_cast<int32_t>(Form::kAuto));
  EXPECT_EQ(head.header.num_ctas, table->shape().num_ctas);
  EXPECT_EQ(head.tickets.num_ctas_done, 0u);
  const auto second = read_device<SegmentRecord>(reinterpret_cast<SegmentRecord*>(table->window(0) + 1) + 1);
  EXPECT_EQ(second.address, base + 8192);
  EXPECT_EQ(second.num_bytes, 256);
  EXPECT_EQ(second.begin_bytes, 4096);
  EXPECT_EQ(read_device<WindowHead>(table->window(1)).header.byte_limit, 16);
  EXPECT_EQ(table->num_segments(0), 2);
  EXPECT_EQ(table->num_segments(1), 1);
}

TEST_F(CudaBackendTest, APatchChangesOneWindowAndLeavesItsSegments) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), 4096, {}}}, {{weights.address() + 4096, 4096, {}}}}, stream);
  backend().patch_table(*table, 1, {1000, Form::kLines}, stream.place());
  stream.synchronize();

  const auto header = read_device<WindowHead>(table->window(1)).header;
  EXPECT_EQ(header.byte_limit, 992) << "in whole granules";
  EXPECT_EQ(header.form, static_cast<int32_t>(Form::kLines));
  EXPECT_EQ(read_device<SegmentRecord>(table->window(1) + 1).address, weights.address() + 4096);
  EXPECT_EQ(read_device<WindowHead>(table->window(0)).header.byte_limit, 4096);
}

TEST_F(CudaBackendTest, ACapOnBytesInFlightHoldsForEveryFormEvenAHint) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), 4096, {}}}}, stream);
  for (const Form form : {Form::kAuto, Form::kBulk, Form::kLines, Form::kLoad}) {
    backend().patch_table(*table, 0, {4096, form, 128 << 10}, stream.place());
    stream.synchronize();
    const auto header = read_device<WindowHead>(table->window(0)).header;
    EXPECT_EQ(header.form, static_cast<int16_t>(Form::kLoad)) << "nobody waits for a hint";
    EXPECT_EQ(header.num_ctas * header.loads_in_flight, 2);
  }
  backend().patch_table(*table, 0, {4096, Form::kLines, 0}, stream.place());
  stream.synchronize();
  const auto header = read_device<WindowHead>(table->window(0)).header;
  EXPECT_EQ(header.form, static_cast<int16_t>(Form::kLines));
  EXPECT_EQ(header.num_ctas, table->shape().num_ctas);
  EXPECT_EQ(header.loads_in_flight, kMaxLoadsInFlight);
}

TEST_F(CudaBackendTest, APatchWaitsForItsStream) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), 4096, {}}}}, stream);
  stream.synchronize();
  Gate gate(stream);
  backend().patch_table(*table, 0, {16, Form::kLines}, stream.place());
  const CudaStream other;
  int64_t byte_limit = 0;
  L2PF_CUDA_CHECK(cudaMemcpyAsync(&byte_limit, table->window(0), sizeof(byte_limit), cudaMemcpyDeviceToHost, other));
  other.synchronize();
  EXPECT_EQ(byte_limit, 4096);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(read_device<WindowHead>(table->window(0)).header.byte_limit, 16);
}

TEST_F(CudaBackendTest, TablesThatAreFreedAreUsedAgain) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto plan = plan_of({{{weights.address(), 4096, {}}}});
  const std::vector<WindowSetting> settings{{4096, Form::kAuto}};
  BlockPool pool(0);
  size_t num_bytes = 0;
  for (int round = 0; round < 100; ++round) {
    const CudaTable table(plan, settings, {.num_ctas = 1}, pool, stream);
    if (round == 0) num_bytes = pool.num_bytes();
    EXPECT_EQ(pool.num_bytes(), num_bytes);
  }
}

TEST_F(CudaBackendTest, AForkWaitsForWhatItsStreamHasEnqueued) {
  const CudaStream stream;
  // All before the gate: making a stream, loading a kernel and copying to pageable memory may wait for the device.
  const CudaStream other;
  WindowHead* head = nullptr;
  L2PF_CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&head), sizeof(*head)));
  const DeviceMemory weights(kMiB);
  const auto first = table_of({{{weights.address(), kMiB, {}}}}, stream);
  backend().fork({first, 0, {}, Form::kAuto}, stream.place());
  backend().join(stream.place());
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  stream.synchronize();
  watch(*table, 0);
  Gate gate(stream);
  backend().fork({table, 0, {}, Form::kAuto}, stream.place());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  L2PF_CUDA_CHECK(cudaMemcpyAsync(head, table->window(0), sizeof(*head), cudaMemcpyDeviceToHost, other));
  other.synchronize();
  EXPECT_EQ(head->tickets.num_ctas_done, 0u);
  gate.open();
  backend().join(stream.place());
  stream.synchronize();
  EXPECT_EQ(num_ctas_done(*table, 0), static_cast<uint32_t>(table->shape().num_ctas));
  L2PF_CUDA_CHECK(cudaFreeHost(head));
}

TEST_F(CudaBackendTest, AJoinWaitsForThePrefetchAndTheStreamDoesNotBefore) {
  const CudaStream stream;
  const DeviceMemory weights(64 * kMiB);
  const auto table = table_of({long_window(weights)}, stream);
  stream.synchronize();
  watch(*table, 0);
  WindowHead beside, after;
  backend().fork({table, 0, {}, Form::kAuto}, stream.place());
  L2PF_CUDA_CHECK(cudaMemcpyAsync(&beside, table->window(0), sizeof(beside), cudaMemcpyDeviceToHost, stream));
  backend().join(stream.place());
  L2PF_CUDA_CHECK(cudaMemcpyAsync(&after, table->window(0), sizeof(after), cudaMemcpyDeviceToHost, stream));
  stream.synchronize();
  EXPECT_LT(beside.tickets.num_ctas_done, static_cast<uint32_t>(table->shape().num_ctas));
  EXPECT_EQ(after.tickets.num_ctas_done, static_cast<uint32_t>(table->shape().num_ctas));
}

TEST_F(CudaBackendTest, AJoinOnAnotherStreamWaitsToo) {
  const CudaStream stream, consumer;
  const DeviceMemory weights(64 * kMiB);
  const auto table = table_of({long_window(weights)}, stream);
  stream.synchronize();
  watch(*table, 0);
  WindowHead after;
  backend().fork({table, 0, {}, Form::kAuto}, stream.place());
  backend().join(consumer.place());
  L2PF_CUDA_CHECK(cudaMemcpyAsync(&after, table->window(0), sizeof(after), cudaMemcpyDeviceToHost, consumer));
  consumer.synchronize();
  EXPECT_EQ(after.tickets.num_ctas_done, static_cast<uint32_t>(table->shape().num_ctas));
}

TEST_F(CudaBackendTest, AWindowSwitchedOffReadsNothing) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  backend().patch_table(*table, 0, {0, Form::kAuto}, stream.place());
  stream.synchronize();
  watch(*table, 0);
  backend().fork({table, 0, {}, Form::kAuto}, stream.place());
  backend().join(stream.place());
  stream.synchronize();
  EXPECT_EQ(num_ctas_done(*table, 0), 0u);
}

TEST_F(CudaBackendTest, EveryFormRunsOnAnySegments) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  // More than one round of segments, odd lengths, and starts inside a line.
  std::vector<Segment> segments;
  for (int i = 0; i < 150; ++i)
    segments.push_back({weights.address() + static_cast<uintptr_t>(i) * 4096 + 16 * (i % 9), 16 * (1 + i % 200), {}});
  const auto table = table_of({segments}, stream);
  for (const Form form : backend().device_info(0).forms) {
    for (const int64_t byte_limit : {int64_t{16}, int64_t{5000}, table->plan()->windows[0].num_bytes}) {
      backend().patch_table(*table, 0, {byte_limit, form}, stream.place());
      backend().fork({table, 0, {}, Form::kAuto}, stream.place());
      backend().join(stream.place());
      stream.synchronize();
    }
    backend().fork({nullptr, 0, segments, form}, stream.place());
    backend().join(stream.place());
    stream.synchronize();
  }
}

TEST_F(CudaBackendTest, ATimerTellsOnceTheStreamGotThere) {
  const CudaStream stream;
  collective(stream);  // the first one allocates
  stream.synchronize();
  Gate gate(stream);
  const auto timer = backend().start_timer(stream.place());
  EXPECT_EQ(timer->elapsed_us(), std::nullopt) << "not stopped";
  collective(stream);
  timer->stop(stream.place());
  EXPECT_EQ(timer->elapsed_us(), std::nullopt) << "not there yet";
  gate.open();
  stream.synchronize();
  ASSERT_TRUE(timer->elapsed_us().has_value());
  EXPECT_GT(*timer->elapsed_us(), 0);
  EXPECT_LT(*timer->elapsed_us(), 1e6);
}

TEST_F(CudaBackendTest, TheAutoBudgetIsTheWindowsFillUpToTheHotKnee) {
  const DeviceInfo info = backend().device_info(0);
  EXPECT_EQ(backend().auto_budget_bytes(0, 10), static_cast<int64_t>(0.6 * static_cast<double>(info.l2_bytes)))
      << "before calibration";
  backend().apply(
      0, {.form = Form::kLines, .num_ctas = 8, .piece_bytes = 4096, .hot_knee_bytes = 10 * kMiB, .fill_gbps = 100});
  EXPECT_EQ(backend().auto_budget_bytes(0, 10), 600 * 1000) << "10 us less 4 at 100 GB/s";
  EXPECT_EQ(backend().auto_budget_bytes(0, 2), 100 * 1000) << "1 us, however short";
  EXPECT_EQ(backend().auto_budget_bytes(0, 0), 2100 * 1000) << "25 us where the length is not known";
  EXPECT_EQ(backend().auto_budget_bytes(0, 1e6), 10 * kMiB);
}

TEST_F(CudaBackendTest, WhatIsAppliedReachesTheNextTable) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const int num_sms = backend().num_sms(0);
  backend().apply(0, {.form = Form::kLoadBoth,
                      .num_ctas = 8,
                      .piece_bytes = 4096,
                      .hot_knee_bytes = kMiB,
                      .fill_gbps = 100,
                      .partition_of_sm = std::vector<int64_t>(num_sms, 0)});
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  backend().fork({table, 0, {}, Form::kAuto}, stream.place());
  backend().join(stream.place());
  stream.synchronize();
  const auto head = read_device<WindowHead>(table->window(0));
  EXPECT_EQ(head.header.form, static_cast<int32_t>(Form::kLoadBoth));
  EXPECT_EQ(head.header.num_ctas, 8);
  EXPECT_EQ(head.header.piece_bytes, 4096);
  EXPECT_NE(head.header.partition_of_sm, 0u);
  EXPECT_EQ(head.tickets.next[0] + head.tickets.next[1] + head.tickets.num_ctas_done, 0u)
      << "the last CTA puts the tickets back";
  EXPECT_THROW(backend().apply(0, {.num_ctas = 8, .piece_bytes = 4096, .partition_of_sm = {0, 1, 0}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace l2pf
