#pragma once

#include <stdint.h>

// The C functions of libl2pf_bench.so that Python calls through ctypes. Each returns a cudaError_t, 0 on success, and
// launches on `stream`, a cudaStream_t. `segments` is device memory: `num_segments` pairs {address, num_bytes}, both
// multiples of 16.
#pragma GCC visibility push(default)
extern "C" {

// Does nothing: what a call through ctypes costs by itself.
int l2pf_bench_nothing(const void* segments, int num_segments, long long num_bytes, void* stream);

// The geometry that other projects published; see rivals.cu.
int l2pf_bench_seed(const void* segments, int num_segments, void* stream);
int l2pf_bench_bulk_4k(const void* segments, int num_segments, void* stream);
// Keeps at most `in_flight_bytes` of loads under way: 64 KiB to 512 KiB, rounded down to a power of two.
int l2pf_bench_paced_load(const void* segments, int num_segments, long long in_flight_bytes, void* stream);

// Reads `num_bytes`, a multiple of 16, from `data`.
int l2pf_bench_read(const void* data, long long num_bytes, int num_ctas, void* stream);
// One thread that waits `wait_us`, and keeps the stream busy so long.
int l2pf_bench_spin(double wait_us, void* stream);
// Lines of L2 that were brought as evict_last become normal ones.
int l2pf_bench_reset_persisting_l2();

}  // extern "C"
#pragma GCC visibility pop
