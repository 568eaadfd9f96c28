#pragma once

#include <cuda_runtime_api.h>

#include "../backend.h"
#include "table_layout.h"

namespace l2pf {

// The grid a prefetch is launched with; fixed once captured, while WindowHeader::num_ctas may ask for less.
struct LaunchShape {
  int num_ctas = 0;
  int num_threads = kMaxThreads;
};

// The launch above of the kernel that reads tables, as this GPU runs it.
cudaError_t footprint_of_prefetch(const LaunchShape& shape, Footprint* footprint);

// Starts the prefetch of one window on `stream`. `window` is device memory, its `num_segments` records behind it.
cudaError_t launch_prefetch(WindowHead* window, int num_segments, const LaunchShape& shape, cudaStream_t stream);
cudaError_t launch_prefetch(const InlineWindow& window, int num_segments, const LaunchShape& shape,
                            cudaStream_t stream);

// The same launches as nodes of `graph`, behind `dependencies`, which read `carried` last.
cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, WindowHead* window,
                              int num_segments, const LaunchShape& shape, const CarriedRecords& carried);
cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, const InlineWindow& window,
                              int num_segments, const LaunchShape& shape, const CarriedRecords& carried);

}  // namespace l2pf
