#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "cuda_check.h"

namespace l2pf {

// Small device allocations for tables. A returned block is used again and never given back to CUDA: cudaFree would
// synchronise the device. So the pool is as large as the most tables that ever lived at once.
class BlockPool {
 public:
  explicit BlockPool(DeviceIndex device) : device_(device) {}

  struct Block {
    void* data = nullptr;
    size_t capacity = 0;
  };

  Block take(size_t num_bytes);
  // Makes no CUDA call, so a graph's destructor may lead here.
  void give_back(const Block& block);
  // Bytes ever allocated; flat when blocks are reused.
  size_t num_bytes() const;

 private:
  const DeviceIndex device_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // by capacity
  size_t num_bytes_ = 0;
};

}  // namespace l2pf
