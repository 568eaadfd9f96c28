#include "captures.h"

#include <algorithm>
#include <iterator>

namespace l2pf {
namespace {

// Never captured, and asking it while another stream is would be an error.
bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

bool is_kernel(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  L2PF_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  return type == cudaGraphNodeTypeKernel;
}

// Launched, not finished: the node runs beside the kernel it depends on.
cudaGraphEdgeData launch_order_edge() {
  cudaGraphEdgeData edge{};
  edge.from_port = cudaGraphKernelNodePortLaunchCompletion;
  edge.type = cudaGraphDependencyTypeProgrammatic;
  return edge;
}

// Measured on an H200: each node behind the first branch of a graph costs about 0.03 us a replay, a prefetch in line
// 0.3 to 0.5 us, since what follows it starts a kernel's end later.
constexpr size_t kNodesThatPayInLine = 16;

}  // namespace

Frontier frontier_of(cudaStream_t stream) {
  Frontier frontier;
  if (is_legacy(stream)) return frontier;
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t num_nodes = 0;
  L2PF_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &frontier.graph, &nodes, &edges, &num_nodes));
  if (status != cudaStreamCaptureStatusActive) return Frontier{};
  frontier.capture_id = id;
  frontier.nodes.assign(nodes, nodes + num_nodes);
  if (edges)
    frontier.edges.assign(edges, edges + num_nodes);
  else
    frontier.edges.resize(num_nodes);
  return frontier;
}

uint64_t capture_id_of(cudaStream_t stream) {
  if (is_legacy(stream)) return 0;
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  L2PF_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

Captures& Captures::instance() {
  static auto& captures = *new Captures;  // never destroyed: graphs may die after static destructors ran
  return captures;
}

void Captures::mark(cudaStream_t stream) {
  Frontier now = frontier_of(stream);
  if (now.capture_id == 0) return;
  open(now);
  const std::lock_guard lock(mutex_);
  captures_.at(now.capture_id).mark = std::move(now);
}

void Captures::attach(cudaStream_t stream, Placement placement, const AddNode& add_node, Held held) {
  const Frontier now = frontier_of(stream);
  if (now.capture_id == 0) return;
  open(now);
  const std::lock_guard lock(mutex_);
  Capture& capture = captures_.at(now.capture_id);
  capture.held->insert(capture.held->end(), std::make_move_iterator(held.begin()), std::make_move_iterator(held.end()));

  if (placement == Placement::kAuto) placement = choose(capture, now.graph);
  Frontier from = now;
  const bool overlaps = placement != Placement::kSideStream && !now.nodes.empty() &&
                        std::all_of(now.nodes.begin(), now.nodes.end(), is_kernel);
  if (overlaps)
    for (size_t i = 0; i < from.nodes.size(); ++i)
      from.edges[i] = from.nodes[i] == capture.previous ? cudaGraphEdgeData{} : launch_order_edge();
  else if (capture.mark.capture_id != 0)
    from = std::move(capture.mark);
  capture.mark = {};
  if (overlaps && placement == Placement::kInLine) {
    cudaGraphNode_t node = add_node(now.graph, from.nodes, from.edges);
    L2PF_CUDA_CHECK(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
    return;
  }
  if (capture.previous && std::find(from.nodes.begin(), from.nodes.end(), capture.previous) == from.nodes.end()) {
    from.nodes.push_back(capture.previous);
    from.edges.emplace_back();
  }
  capture.previous = add_node(now.graph, from.nodes, from.edges);
}

Placement Captures::choose(Capture& capture, cudaGraph_t graph) {
  if (capture.chosen != Placement::kAuto) return capture.chosen;
  size_t num_nodes = 0;
  L2PF_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  if (capture.num_nodes_at_first == 0) {
    capture.num_nodes_at_first = num_nodes + 1;
    return Placement::kInLine;
  }
  const bool pays = num_nodes - capture.num_nodes_at_first >= kNodesThatPayInLine;
  return capture.chosen = pays ? Placement::kInLine : Placement::kLaunchOrder;
}

void Captures::join(cudaStream_t stream) {
  const Frontier now = frontier_of(stream);
  const std::lock_guard lock(mutex_);
  const auto it = captures_.find(now.capture_id);
  if (it == captures_.end() || !it->second.previous) return;
  L2PF_CUDA_CHECK(
      cudaStreamUpdateCaptureDependencies(stream, &it->second.previous, nullptr, 1, cudaStreamAddCaptureDependencies));
}

size_t Captures::size() const {
  const std::lock_guard lock(mutex_);
  return captures_.size();
}

void Captures::open(const Frontier& now) {
  {
    const std::lock_guard lock(mutex_);
    if (captures_.contains(now.capture_id)) return;
  }
  auto grave = std::make_unique<Grave>(Grave{now.capture_id, {}});
  cudaUserObject_t object{};
  L2PF_CUDA_CHECK(cudaUserObjectCreate(&object, grave.get(), &Captures::bury, 1, cudaUserObjectNoDestructorSync));
  Grave* const owned = grave.release();
  const cudaError_t error = cudaGraphRetainUserObject(now.graph, object, 1, cudaGraphUserObjectMove);
  if (error != cudaSuccess) L2PF_CUDA_WARN(cudaUserObjectRelease(object, 1));  // still ours
  cuda_check(error, "cudaGraphRetainUserObject");
  const std::lock_guard lock(mutex_);
  captures_.try_emplace(now.capture_id, Capture{.held = &owned->held});
}

void Captures::bury(void* raw) {
  const std::unique_ptr<Grave> grave(static_cast<Grave*>(raw));
  auto& captures = instance();
  {
    const std::lock_guard lock(captures.mutex_);
    captures.captures_.erase(grave->capture_id);
  }
  Graveyard::instance().bury(std::move(grave->held));
}

}  // namespace l2pf
