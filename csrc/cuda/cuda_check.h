#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "../backend.h"

// Throws BackendError naming the call. Takes the error back out of the runtime, so that the next call of anyone
// else in this thread does not report ours.
#define L2PF_CUDA_CHECK(call) ::l2pf::cuda_check((call), #call)

// The same for destructors: says on stderr what failed and goes on.
#define L2PF_CUDA_WARN(call) ::l2pf::cuda_warn((call), #call)

namespace l2pf {

inline void cuda_check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw BackendError(std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

inline void cuda_warn(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  // The process ends, or it is a child of the one that used CUDA: there is nothing to release.
  if (error == cudaErrorCudartUnloading || error == cudaErrorInitializationError) return;
  std::fprintf(stderr, "dsv41_l2pf: %s: %s: %s\n", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace l2pf
