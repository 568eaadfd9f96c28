#include <algorithm>
#include <utility>

#include "runtime.h"

// Stream capture.
using fake_cuda::call;
using fake_cuda::Capture;
using fake_cuda::Runtime;
using fake_cuda::this_thread;

namespace {

// Whether everything that `stream` captured leads to what the capture's first stream would depend on next.
bool is_joined(const Capture& capture, cudaStream_t stream) {
  auto before = capture.origin->frontier.nodes;
  for (size_t i = 0; i < before.size(); ++i)
    for (const auto& edge : capture.graph->edges)
      if (edge.to == before[i] && std::find(before.begin(), before.end(), edge.from) == before.end())
        before.push_back(edge.from);
  return std::all_of(stream->frontier.nodes.begin(), stream->frontier.nodes.end(),
                     [&](auto node) { return std::find(before.begin(), before.end(), node) != before.end(); });
}

cudaError_t end_of(const Capture& capture) {
  if (!capture.is_valid) return cudaErrorStreamCaptureInvalidated;
  for (const auto stream : capture.forked)
    if (!is_joined(capture, stream)) return cudaErrorStreamCaptureUnjoined;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Runtime& runtime) {
    if (stream == nullptr || stream->capture) return cudaErrorIllegalState;
    ++runtime.live.graphs;
    stream->capture = std::make_shared<Capture>(Capture{.id = ++runtime.last_capture_id,
                                                        .graph = new CUgraph_st,
                                                        .origin = stream,
                                                        .mode = mode,
                                                        .thread = std::this_thread::get_id()});
    stream->frontier = {};
    runtime.captures.insert(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  cudaGraph_t invalid = nullptr;
  const cudaError_t error = call("cudaStreamEndCapture", [&](Runtime& runtime) {
    if (!stream->capture || stream->capture->origin != stream) return cudaErrorIllegalState;
    const auto capture = std::exchange(stream->capture, nullptr);
    const cudaError_t error = end_of(*capture);
    for (const auto forked : capture->forked) forked->capture = nullptr;
    runtime.captures.erase(capture);
    (error == cudaSuccess ? *graph : invalid) = capture->graph;
    return error;
  });
  if (invalid) cudaGraphDestroy(invalid);
  return error;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* num_nodes) {
  return call("cudaStreamGetCaptureInfo", [&](Runtime& runtime) {
    stream = runtime.resolve(stream);
    *status = !stream->capture            ? cudaStreamCaptureStatusNone
              : stream->capture->is_valid ? cudaStreamCaptureStatusActive
                                          : cudaStreamCaptureStatusInvalidated;
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (nodes) *nodes = stream->frontier.nodes.data();
    if (edges) *edges = stream->frontier.edges.data();
    if (num_nodes) *num_nodes = stream->frontier.nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData* edges, size_t num_nodes, unsigned flags) {
  return call("cudaStreamUpdateCaptureDependencies", [&](Runtime&) {
    if (!stream->capture) return cudaErrorIllegalState;
    if (flags == cudaStreamSetCaptureDependencies) stream->frontier = {};
    for (size_t i = 0; i < num_nodes; ++i) {
      if (!stream->capture->graph->has(nodes[i])) return cudaErrorInvalidValue;
      stream->frontier.add(nodes[i], edges ? edges[i] : cudaGraphEdgeData{});
    }
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Runtime&) {
    std::swap(*mode, this_thread().mode);
    return cudaSuccess;
  });
}

}  // extern "C"
