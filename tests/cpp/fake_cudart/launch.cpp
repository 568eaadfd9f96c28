#include <cstring>

#include "runtime.h"

// What nvcc's code calls to make its kernels known and to launch one with <<<>>>. Not counted as calls, except for the
// launch: nvcc's code makes them once a process, or hands over numbers.
using fake_cuda::call;
using fake_cuda::Runtime;

namespace {

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;

cudaError_t launch(const void* host_function, cudaStream_t stream) {
  return call("cudaLaunchKernel", [&](Runtime& runtime) {
    const auto name = runtime.kernel_names.find(host_function);
    if (name == runtime.kernel_names.end()) return cudaErrorInvalidDeviceFunction;
    return runtime.enqueue(stream, cudaGraphNodeTypeKernel, {.kernel = name->second});
  });
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.kernel_names[host_function] = name;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  const Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  std::memcpy(stream, &top.stream, sizeof(top.stream));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  return call("cudaFuncGetAttributes", [&](Runtime& runtime) {
    if (!runtime.kernel_names.contains(host_function)) return cudaErrorInvalidDeviceFunction;
    *attributes = {};
    attributes->numRegs = 53;
    attributes->sharedSizeBytes = 2572;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchKernel(const void* host_function, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(host_function, stream);
}

}  // extern "C"
