#pragma once

#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "fake_cudart.h"

// The state behind the fake's functions. One lock holds it all; destructors of user objects run outside it.
namespace fake_cuda {

struct Frontier {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;

  void add(cudaGraphNode_t node, const cudaGraphEdgeData& edge = {});
};

struct Capture {
  uint64_t id = 0;
  cudaGraph_t graph = nullptr;
  cudaStream_t origin = nullptr;
  std::set<cudaStream_t> forked;  // the other streams in it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool is_valid = true;
};

// One record of an event.
struct Ticket {
  cudaStream_t stream = nullptr;
  bool is_done = false;
  double time_us = 0;
};

struct Work {
  std::string kernel;  // empty: none
  std::function<void()> action;
  std::shared_ptr<Ticket> waits_for;
  std::shared_ptr<Ticket> signals;
};

}  // namespace fake_cuda

struct CUstream_st {
  int device = 0;
  std::deque<fake_cuda::Work> queue;
  double time_us = 0;
  std::shared_ptr<fake_cuda::Capture> capture;
  fake_cuda::Frontier frontier;
};

struct CUevent_st {
  bool is_timed = false;
  std::shared_ptr<fake_cuda::Ticket> ticket;
  std::shared_ptr<fake_cuda::Capture> capture;
  fake_cuda::Frontier frontier;
};

struct CUgraphNode_st {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  fake_cuda::Work work;
};

struct CUuserObject_st {
  void* data = nullptr;
  cudaHostFn_t destroy = nullptr;
  unsigned num_references = 0;
};

struct CUgraph_st {
  struct Edge {
    cudaGraphNode_t from = nullptr;
    cudaGraphNode_t to = nullptr;
    cudaGraphEdgeData data = {};
  };
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // each behind those it depends on
  std::vector<Edge> edges;
  std::map<cudaUserObject_t, unsigned> objects;

  bool has(cudaGraphNode_t node) const;
};

struct CUgraphExec_st {
  std::vector<fake_cuda::Work> works;
  std::map<cudaUserObject_t, unsigned> objects;
};

namespace fake_cuda {

// What each thread has of its own.
struct ThreadState {
  cudaError_t last_error = cudaSuccess;
  int device = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  int num_counted_scopes = 0;
  bool in_destructor = false;
};
ThreadState& this_thread();

class Runtime {
 public:
  static Runtime& instance();

  // The error that the call `name` fails with before it does anything.
  cudaError_t admit(const char* name);
  // For a call that touches no stream: an error, and the end of the captures, where one forbids it.
  cudaError_t forbid_in_captures();

  cudaStream_t resolve(cudaStream_t stream);
  // Captured, or put into the stream's queue.
  cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, Work work);
  void drain(cudaStream_t stream);
  void release(cudaUserObject_t object, unsigned count);

  std::recursive_mutex mutex;
  int num_devices = 1;
  int major = 9;
  bool is_integrated = false;
  bool is_deferred = false;
  Live live;
  std::vector<KernelRun> kernel_runs;
  std::map<void*, size_t> allocations;
  std::map<const void*, std::string> kernel_names;  // by host function
  std::set<std::shared_ptr<Capture>> captures;
  uint64_t last_capture_id = 0;
  std::vector<std::pair<cudaHostFn_t, void*>> dying;
  std::function<void(const cudaGraphNodeParams&)> added_node;

  int64_t num_counted_calls = 0;
  int64_t failing_call = -1;
  cudaError_t failing_with = cudaSuccess;
  Lasting lasting = Lasting::kOnce;
  std::string failed_call;
  int num_forbidden_calls = 0;
  pid_t process = 0;  // that used the runtime first

 private:
  std::map<int, std::unique_ptr<CUstream_st>> legacy_streams_;
};

// Runs what lost its last reference in a call, as CUDA does: it may not call CUDA.
void run_destructors(std::vector<std::pair<cudaHostFn_t, void*>> dying);

// One call of the runtime: it may be told to fail; its error is kept for cudaGetLastError.
template <typename Body>
cudaError_t call(const char* name, const Body& body, bool releases = false) {
  Runtime& runtime = Runtime::instance();
  std::vector<std::pair<cudaHostFn_t, void*>> dying;
  cudaError_t error = cudaSuccess;
  {
    const std::lock_guard lock(runtime.mutex);
    error = runtime.admit(name);
    if (error == cudaSuccess || releases) {
      const cudaError_t own = body(runtime);
      if (error == cudaSuccess) error = own;
    }
    dying.swap(runtime.dying);
  }
  if (error != cudaSuccess) this_thread().last_error = error;
  run_destructors(std::move(dying));
  return error;
}

template <typename Body>
cudaError_t release_call(const char* name, const Body& body) {
  return call(name, body, true);
}

}  // namespace fake_cuda
