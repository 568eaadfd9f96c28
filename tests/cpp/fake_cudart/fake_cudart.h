#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// A CUDA runtime without a GPU, for the host code in csrc/cuda: device memory is host memory, streams are ordered
// queues, graphs are data, and kernels are only noted. What a test may ask of it and do to it.
namespace fake_cuda {

// Every device is of this size. Small, so that calibration runs quickly.
inline constexpr int kNumSms = 4;
inline constexpr int kL2Bytes = 4 << 20;

// How many devices there are, and their compute capability. Forgets all faults, launches and deferral.
void reset(int num_devices = 1, int major = 9);

// Whether the devices share the host's memory.
void set_integrated(bool is_integrated);

// Calls of this thread count, and may fail, while one of these lives.
class CountedScope {
 public:
  CountedScope();
  ~CountedScope();
  CountedScope(const CountedScope&) = delete;
  CountedScope& operator=(const CountedScope&) = delete;
};

enum class Lasting { kOnce, kForGood };  // kForGood: a device that is lost

// Counts from zero again; the counted call number `call_index` fails with `error`. A call that releases something
// releases it all the same.
void fail_call(int64_t call_index, cudaError_t error, Lasting lasting = Lasting::kOnce);
void fail_no_call();
int64_t num_counted_calls();
// The call that failed first; empty when none did.
std::string failed_call();

// Work stays in its stream until someone waits for it.
void set_deferred(bool deferred);

struct Live {
  int allocations = 0;
  int streams = 0;
  int events = 0;
  int graphs = 0;  // and executable ones
  int user_objects = 0;

  friend bool operator==(const Live&, const Live&) = default;
};
Live live();

// A kernel that ran, in the order in which they did.
struct KernelRun {
  std::string name;
  cudaStream_t stream = nullptr;
};
std::vector<KernelRun> take_kernel_runs();

// Sees every node that is added to a graph, with its kernel's parameters; nothing: nobody does. `reset` forgets it.
void watch_added_nodes(std::function<void(const cudaGraphNodeParams&)> watch);

// A kernel of someone else: what a model or a collective puts on the stream.
cudaError_t launch_kernel(const char* name, cudaStream_t stream);

// As if this process had not used the runtime yet: a child that it forks may.
void forget_process();

// Calls made where CUDA forbids them: by a destructor of a user object.
int num_forbidden_calls();

}  // namespace fake_cuda
