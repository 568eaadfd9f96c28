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

// Waits until the kernels behind programmatic edges into this one have ended and what they wrote can be seen; returns
// at once where there is no such edge.
__device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What loads that keep their line carry: L2 evicts lines of other policies first.
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// What other loads carry.
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// `load_line` with a policy of L2.
__device__ __forceinline__ uint32_t load_line(uint64_t address, uint64_t policy) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  asm volatile("ld.global.L2::cache_hint.L2::128B.u32 %0, [%1], %2;"
               : "=r"(word)
               : "l"(address), "l"(policy)
               : "memory");
  return word;
#else
  (void)policy;
  return load_line(address);
#endif
}

// The SM this thread runs on.
__device__ __forceinline__ int sm_index() {
  int index;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
  return index;
}

__device__ __forceinline__ uint64_t global_time_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Reads from L2, past L1.
__device__ __forceinline__ uint32_t load_from_l2(const void* address) {
  uint32_t word;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}

__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* address) {
  uint32_t word;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}

__device__ __forceinline__ void store_release_system(uint32_t* address, uint32_t word) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}

}  // namespace l2pf::ptx
