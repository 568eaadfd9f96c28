#include "overlap_graph.h"

#include "captures.h"

namespace l2pf {

OverlapGraph::OverlapGraph(const std::function<void()>& collective, WindowHead* head, const LaunchShape& shape,
                           Placement placement, cudaStream_t stream) {
  const auto add_node = [&](cudaGraph_t graph, const auto& nodes, const auto& edges) {
    cudaGraphNode_t node{};
    L2PF_CUDA_CHECK(add_prefetch_node(&node, graph, nodes.data(), edges.data(), nodes.size(), head, 1, shape, {}));
    return node;
  };
  L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  try {
    Captures::instance().mark(stream);
    collective();
    Captures::instance().attach(stream, placement, add_node, {});
    Captures::instance().join(stream);
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph_) != cudaSuccess) cudaGetLastError();
    release();
    throw;
  }
  try {
    L2PF_CUDA_CHECK(cudaStreamEndCapture(stream, &graph_));
    L2PF_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph_, 0));
  } catch (...) {
    release();
    throw;
  }
}

OverlapGraph::~OverlapGraph() { release(); }

void OverlapGraph::release() noexcept {
  if (exec_) L2PF_CUDA_WARN(cudaGraphExecDestroy(exec_));
  if (graph_) L2PF_CUDA_WARN(cudaGraphDestroy(graph_));
}

}  // namespace l2pf
