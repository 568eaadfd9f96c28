#pragma once

#include <cstdint>

// One instruction, one name.
namespace l2pf::ptx {

// Asks for `num_bytes` to be brought into L2; both arguments are multiples of 16.
__device__ __forceinline__ void bulk_prefetch_l2(uint64_t address, uint32_t num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(num_bytes) : "memory");
#else
  (void)address;
  (void)num_bytes;
#endif
}

// Asks for the line that holds `address` to be brought into L2.
__device__ __forceinline__ void line_prefetch_l2(uint64_t address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// Reads four bytes and with them brings a whole 128-byte line into L2. Never with L1::no_allocate: measured, most of
// the lines are then read from DRAM again.
__device__ __forceinline__ uint32_t load_line(uint64_t address) {
  uint32_t word;
  asm volatile("ld.global.L2::128B.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}

// Keeps a value alive, so that the loads it came from are not removed.
__device__ __forceinline__ void consume(uint32_t value) { asm volatile("" ::"r"(value)); }

}  // namespace l2pf::ptx
