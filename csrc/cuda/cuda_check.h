#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "../backend.h"

// Throws BackendError naming the call. Takes the error back out of the runtime, so that the next call of anyone
// else in this thread does not report ours.
#define L2PF_CUDA_CHECK(call) ::l2pf::cuda_check((call), #call)

namespace l2pf {

inline void cuda_check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw BackendError(std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace l2pf
