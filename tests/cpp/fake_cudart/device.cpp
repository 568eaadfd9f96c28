#include <cstring>
#include <utility>

#include "runtime.h"

// Devices and errors.
using fake_cuda::call;
using fake_cuda::Runtime;
using fake_cuda::this_thread;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError:
      return "cudaErrorInitializationError";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "an error";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime&) {
    *device = this_thread().device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& runtime) {
    if (device < 0 || device >= runtime.num_devices) return cudaErrorInvalidDevice;
    this_thread().device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& runtime) {
    if (device < 0 || device >= runtime.num_devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "fake");
    properties->major = runtime.major;
    properties->integrated = runtime.is_integrated;
    properties->l2CacheSize = fake_cuda::kL2Bytes;
    properties->multiProcessorCount = fake_cuda::kNumSms;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  return call("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    if (device < 0 || device >= runtime.num_devices) return cudaErrorInvalidDevice;
    if (name == cudaDevAttrComputeCapabilityMajor)
      *value = runtime.major;
    else if (name == cudaDevAttrL2CacheSize)
      *value = fake_cuda::kL2Bytes;
    else if (name == cudaDevAttrMultiProcessorCount)
      *value = fake_cuda::kNumSms;
    else
      return cudaErrorInvalidValue;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", [&](Runtime&) {
    *version = 13000;
    return cudaSuccess;
  });
}

}  // extern "C"
