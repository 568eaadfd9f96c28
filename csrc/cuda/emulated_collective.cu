#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

#include "device_scope.h"
#include "emulated_collective.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

// Host memory that both sides see.
struct Mailbox {
  uint32_t doorbell = 0;  // number of the collective that waits
  uint32_t delay_ns = 0;
  char apart[120];      // the two sides write different lines
  uint32_t answer = 0;  // number of the last collective answered
};

constexpr int kThreads = 512;
// A peer that died must not hang the GPU for good.
constexpr uint64_t kGiveUpNs = 2'000'000'000;
// The answering thread spins while collectives come and sleeps between polls when none did for this long.
constexpr auto kSpinFor = std::chrono::milliseconds(200);
constexpr auto kIdlePoll = std::chrono::microseconds(100);

struct Counters {
  uint32_t num_done = 0;  // collectives of this device so far
  uint32_t num_ctas = 0;  // CTAs of the present one that finished
};

__global__ void __launch_bounds__(kThreads)
    l2pf_emulated_collective(Mailbox* mailbox, Counters* counters, uint32_t* data, int64_t num_words,
                             uint32_t delay_ns) {
  if (threadIdx.x == 0) {
    const uint32_t number = *static_cast<volatile uint32_t*>(&counters->num_done) + 1;
    if (blockIdx.x == 0) {
      *static_cast<volatile uint32_t*>(&mailbox->delay_ns) = delay_ns;
      ptx::store_release_system(&mailbox->doorbell, number);
    }
    const uint64_t begin = ptx::global_time_ns();
    while (static_cast<int32_t>(ptx::load_acquire_system(&mailbox->answer) - number) < 0 &&
           ptx::global_time_ns() - begin < kGiveUpNs) {
    }
  }
  __syncthreads();
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_words; i += step)
    static_cast<volatile uint32_t*>(data)[i] = static_cast<volatile uint32_t*>(data)[i];
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&counters->num_ctas, 1) == gridDim.x - 1) {
    counters->num_ctas = 0;
    __threadfence();
    atomicAdd(&counters->num_done, 1);
  }
}

struct FreeHost {
  void operator()(void* data) const { L2PF_CUDA_WARN(cudaFreeHost(data)); }
};
struct FreeDevice {
  void operator()(void* data) const { L2PF_CUDA_WARN(cudaFree(data)); }
};

}  // namespace

struct EmulatedCollective::Peer {
  explicit Peer() {
    const RelaxedCaptureScope relaxed;
    void* data = nullptr;
    L2PF_CUDA_CHECK(cudaHostAlloc(&data, sizeof(Mailbox), cudaHostAllocMapped));
    mailbox.reset(new (data) Mailbox);
    L2PF_CUDA_CHECK(cudaMalloc(&data, sizeof(Counters)));
    counters.reset(static_cast<Counters*>(data));
    L2PF_CUDA_CHECK(cudaMemset(data, 0, sizeof(Counters)));
    std::thread([box = mailbox.get()] { answer(box); }).detach();
  }

  [[noreturn]] static void answer(Mailbox* mailbox) {
    using Clock = std::chrono::steady_clock;
    std::atomic_ref<uint32_t> doorbell(mailbox->doorbell);
    std::atomic_ref<uint32_t> delay_ns(mailbox->delay_ns);
    std::atomic_ref<uint32_t> answered(mailbox->answer);
    uint32_t last = 0;
    auto last_rung = Clock::now();
    while (true) {
      const uint32_t rung = doorbell.load(std::memory_order_acquire);
      const auto now = Clock::now();
      if (rung == last) {
        if (now - last_rung > kSpinFor) std::this_thread::sleep_for(kIdlePoll);
        continue;
      }
      const auto until = now + std::chrono::nanoseconds(delay_ns.load(std::memory_order_relaxed));
      while (Clock::now() < until) {
      }
      last = rung;
      last_rung = now;
      answered.store(rung, std::memory_order_release);
    }
  }

  std::unique_ptr<Mailbox, FreeHost> mailbox;
  std::unique_ptr<Counters, FreeDevice> counters;
};

EmulatedCollective& EmulatedCollective::instance() {
  static auto& collective = *new EmulatedCollective;  // never destroyed: its threads have no end
  return collective;
}

EmulatedCollective::Peer& EmulatedCollective::peer(DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  auto& slot = peers_[device];
  if (!slot) slot = std::make_unique<Peer>();
  return *slot;
}

void EmulatedCollective::launch(void* data, int64_t num_bytes, double delay_us, int num_ctas, const Place& place) {
  const DeviceScope scope(place.device);
  Peer& own = peer(place.device);
  l2pf_emulated_collective<<<num_ctas, kThreads, 0, static_cast<cudaStream_t>(place.stream)>>>(
      own.mailbox.get(), own.counters.get(), static_cast<uint32_t*>(data), num_bytes / 4,
      static_cast<uint32_t>(delay_us * 1e3));
  L2PF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace l2pf
