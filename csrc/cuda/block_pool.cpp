#include "block_pool.h"

#include <algorithm>
#include <bit>

#include "device_scope.h"

namespace l2pf {
namespace {

constexpr size_t kSmallestBlockBytes = 4096;

}  // namespace

BlockPool::Block BlockPool::take(size_t num_bytes) {
  const size_t capacity = std::bit_ceil(std::max(num_bytes, kSmallestBlockBytes));
  const std::lock_guard lock(mutex_);
  if (const auto it = free_.find(capacity); it != free_.end()) {
    const Block block{it->second, capacity};
    free_.erase(it);
    return block;
  }
  const DeviceScope device(device_);
  const RelaxedCaptureScope relaxed;
  Block block{nullptr, capacity};
  L2PF_CUDA_CHECK(cudaMalloc(&block.data, capacity));
  num_bytes_ += capacity;
  return block;
}

void BlockPool::give_back(const Block& block) {
  const std::lock_guard lock(mutex_);
  free_.emplace(block.capacity, block.data);
}

size_t BlockPool::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace l2pf
