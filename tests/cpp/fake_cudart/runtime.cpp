#include "runtime.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace fake_cuda {
namespace {

// What a kernel takes; all take the same.
constexpr double kKernelUs = 5;

// What a lost device still does: these ask and tell the calling thread only.
bool works_for_good(std::string_view name) {
  return name == "cudaGetDevice" || name == "cudaSetDevice" || name == "cudaThreadExchangeStreamCaptureMode";
}

}  // namespace

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

Runtime& Runtime::instance() {
  static auto& runtime = *new Runtime;  // never destroyed: nvcc's code registers before main and unregisters after it
  return runtime;
}

cudaError_t Runtime::admit(const char* name) {
  if (this_thread().in_destructor) {
    ++num_forbidden_calls;
    return cudaErrorNotPermitted;
  }
  // A process that forked after its first use has no CUDA any more.
  if (process == 0) process = getpid();
  if (process != getpid()) return cudaErrorInitializationError;
  if (this_thread().num_counted_scopes == 0) return cudaSuccess;
  const int64_t index = num_counted_calls++;
  if (failing_call < 0 || index < failing_call) return cudaSuccess;
  if (lasting == Lasting::kOnce && index > failing_call) return cudaSuccess;
  if (lasting == Lasting::kForGood && works_for_good(name)) return cudaSuccess;
  if (failed_call.empty()) failed_call = name;
  return failing_with;
}

cudaError_t Runtime::forbid_in_captures() {
  const auto mode = this_thread().mode;
  bool is_forbidden = false;
  for (const auto& capture : captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed || mode == cudaStreamCaptureModeRelaxed) continue;
    const bool is_ours = capture->thread == std::this_thread::get_id();
    const bool is_global = capture->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
    if (!is_ours && !is_global) continue;
    capture->is_valid = false;
    is_forbidden = true;
  }
  return is_forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaStream_t Runtime::resolve(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return stream;
  auto& legacy = legacy_streams_[this_thread().device];
  if (!legacy) legacy = std::make_unique<CUstream_st>(CUstream_st{.device = this_thread().device});
  return legacy.get();
}

cudaError_t Runtime::enqueue(cudaStream_t stream, cudaGraphNodeType type, Work work) {
  stream = resolve(stream);
  if (stream->device != this_thread().device && !work.kernel.empty()) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    if (!stream->capture->is_valid) return cudaErrorStreamCaptureInvalidated;
    auto& graph = *stream->capture->graph;
    graph.nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{type, std::move(work)}));
    const cudaGraphNode_t node = graph.nodes.back().get();
    for (size_t i = 0; i < stream->frontier.nodes.size(); ++i)
      graph.edges.push_back({stream->frontier.nodes[i], node, stream->frontier.edges[i]});
    stream->frontier = {};
    stream->frontier.add(node);
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(work));
  if (!is_deferred) drain(stream);
  return cudaSuccess;
}

void Runtime::drain(cudaStream_t stream) {
  while (!stream->queue.empty()) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (work.waits_for) {
      if (!work.waits_for->is_done) drain(work.waits_for->stream);
      stream->time_us = std::max(stream->time_us, work.waits_for->time_us);
    }
    if (work.action) work.action();
    if (!work.kernel.empty()) {
      kernel_runs.push_back({work.kernel, stream});
      stream->time_us += kKernelUs;
    }
    if (work.signals) {
      work.signals->is_done = true;
      work.signals->time_us = stream->time_us;
    }
  }
}

void Runtime::release(cudaUserObject_t object, unsigned count) {
  object->num_references -= count;
  if (object->num_references > 0) return;
  dying.emplace_back(object->destroy, object->data);
  --live.user_objects;
  delete object;
}

void run_destructors(std::vector<std::pair<cudaHostFn_t, void*>> dying) {
  for (const auto& [destroy, data] : dying) {
    this_thread().in_destructor = true;
    destroy(data);
    this_thread().in_destructor = false;
  }
}

void Frontier::add(cudaGraphNode_t node, const cudaGraphEdgeData& edge) {
  if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return;
  nodes.push_back(node);
  edges.push_back(edge);
}

}  // namespace fake_cuda
