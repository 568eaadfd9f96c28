#pragma once

#include <functional>

#include "cuda_check.h"
#include "prefetch_kernel.h"

namespace l2pf {

// A collective with one prefetch beside it, placed as captured code has it: what calibration times.
class OverlapGraph {
 public:
  // Captures what `collective` enqueues on `stream`, and the prefetch of the window at `head`, of one segment.
  // launch_order: the prefetch starts with the collective (needs sm_90), else where it does. Throws BackendError.
  OverlapGraph(const std::function<void()>& collective, WindowHead* head, const LaunchShape& shape, Placement placement,
               cudaStream_t stream);
  ~OverlapGraph();
  OverlapGraph(const OverlapGraph&) = delete;
  OverlapGraph& operator=(const OverlapGraph&) = delete;

  void launch(cudaStream_t stream) { L2PF_CUDA_CHECK(cudaGraphLaunch(exec_, stream)); }

 private:
  void release() noexcept;

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace l2pf
