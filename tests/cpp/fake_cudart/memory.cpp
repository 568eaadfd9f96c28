#include <cstdlib>
#include <cstring>

#include "runtime.h"

// Allocations, copies and fills. Device memory is host memory, and tables are in it.
using fake_cuda::call;
using fake_cuda::release_call;
using fake_cuda::Runtime;

namespace {

cudaError_t allocate(Runtime& runtime, void** data, size_t num_bytes) {
  if (const cudaError_t error = runtime.forbid_in_captures(); error != cudaSuccess) return error;
  *data = std::aligned_alloc(256, (num_bytes + 255) & ~size_t{255});
  if (!*data) return cudaErrorMemoryAllocation;
  runtime.allocations[*data] = num_bytes;
  ++runtime.live.allocations;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, size_t num_bytes) {
  return call("cudaMalloc", [&](Runtime& runtime) { return allocate(runtime, data, num_bytes); });
}

cudaError_t cudaHostAlloc(void** data, size_t num_bytes, unsigned) {
  return call("cudaHostAlloc", [&](Runtime& runtime) { return allocate(runtime, data, num_bytes); });
}

cudaError_t cudaFree(void* data) {
  return release_call("cudaFree", [&](Runtime& runtime) {
    if (!data) return cudaSuccess;
    if (runtime.allocations.erase(data) == 0) return cudaErrorInvalidValue;
    --runtime.live.allocations;
    std::free(data);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t num_bytes, cudaMemcpyKind) {
  return call("cudaMemcpy", [&](Runtime& runtime) {
    if (const cudaError_t error = runtime.forbid_in_captures(); error != cudaSuccess) return error;
    std::memcpy(to, from, num_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& runtime) {
    if (kind == cudaMemcpyDeviceToHost)
      return runtime.enqueue(stream, cudaGraphNodeTypeMemcpy, {.action = [=] { std::memcpy(to, from, num_bytes); }});
    const auto* const bytes = static_cast<const char*>(from);
    return runtime.enqueue(stream, cudaGraphNodeTypeMemcpy,
                           {.action = [to, copy = std::vector<char>(bytes, bytes + num_bytes)] {
                             std::memcpy(to, copy.data(), copy.size());
                           }});
  });
}

cudaError_t cudaMemset(void* data, int value, size_t num_bytes) {
  return call("cudaMemset", [&](Runtime& runtime) {
    if (const cudaError_t error = runtime.forbid_in_captures(); error != cudaSuccess) return error;
    std::memset(data, value, num_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t num_bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Runtime& runtime) {
    return runtime.enqueue(stream, cudaGraphNodeTypeMemset, {.action = [=] { std::memset(data, value, num_bytes); }});
  });
}

}  // extern "C"
