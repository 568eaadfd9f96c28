#include <cstdint>
#include <memory>

#include "device_scope.h"
#include "emulated_collective.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

constexpr int kThreads = 512;

struct Counters {
  uint32_t num_done = 0;  // collectives of this device so far
  uint32_t num_ctas = 0;  // CTAs of the present one that finished
  char apart[120];        // nobody writes the line that is polled but the peer
  uint32_t answer = 0;    // number of the last collective answered
};

__global__ void __launch_bounds__(kThreads)
    l2pf_emulated_collective(Counters* counters, uint32_t* data, int64_t num_words, uint32_t delay_ns) {
  if (threadIdx.x == 0) {
    const uint32_t number = *static_cast<volatile uint32_t*>(&counters->num_done) + 1;
    if (blockIdx.x == 0) {  // plays the peer too
      const uint64_t begin = ptx::global_time_ns();
      while (ptx::global_time_ns() - begin < delay_ns) {
      }
      ptx::store_release_system(&counters->answer, number);
    }
    while (static_cast<int32_t>(ptx::load_acquire_system(&counters->answer) - number) < 0) {
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

struct FreeDevice {
  void operator()(void* data) const { L2PF_CUDA_WARN(cudaFree(data)); }
};

}  // namespace

struct EmulatedCollective::Peer {
  Peer() {
    const RelaxedCaptureScope relaxed;
    void* data = nullptr;
    L2PF_CUDA_CHECK(cudaMalloc(&data, sizeof(Counters)));
    counters.reset(static_cast<Counters*>(data));
    L2PF_CUDA_CHECK(cudaMemset(data, 0, sizeof(Counters)));
  }

  std::unique_ptr<Counters, FreeDevice> counters;
};

EmulatedCollective& EmulatedCollective::instance() {
  static auto& collective = *new EmulatedCollective;  // never destroyed: CUDA may be gone when static destructors run
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
      own.counters.get(), static_cast<uint32_t*>(data), num_bytes / 4, static_cast<uint32_t>(delay_us * 1e3));
  L2PF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace l2pf
