#pragma once

#include "cuda_check.h"

namespace l2pf {

// Owns one stream, made on the current device, that does not wait for the legacy stream.
class OwnedStream {
 public:
  OwnedStream() { L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnedStream() { L2PF_CUDA_WARN(cudaStreamDestroy(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace l2pf
