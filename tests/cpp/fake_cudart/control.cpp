#include <utility>

#include "runtime.h"

// What a test asks of the fake and does to it.
namespace fake_cuda {
namespace {

template <typename Body>
auto locked(const Body& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return body(runtime);
}

}  // namespace

void reset(int num_devices, int major) {
  fail_no_call();
  locked([&](Runtime& runtime) {
    runtime.num_devices = num_devices;
    runtime.major = major;
    runtime.is_integrated = false;
    runtime.is_deferred = false;
    runtime.kernel_runs.clear();
    runtime.num_forbidden_calls = 0;
    runtime.added_node = nullptr;
  });
}

void set_integrated(bool is_integrated) {
  locked([&](Runtime& runtime) { runtime.is_integrated = is_integrated; });
}

CountedScope::CountedScope() { ++this_thread().num_counted_scopes; }
CountedScope::~CountedScope() { --this_thread().num_counted_scopes; }

void fail_call(int64_t call_index, cudaError_t error, Lasting lasting) {
  locked([&](Runtime& runtime) {
    runtime.num_counted_calls = 0;
    runtime.failing_call = call_index;
    runtime.failing_with = error;
    runtime.lasting = lasting;
    runtime.failed_call.clear();
  });
}
void fail_no_call() { fail_call(-1, cudaSuccess); }
int64_t num_counted_calls() {
  return locked([](Runtime& runtime) { return runtime.num_counted_calls; });
}
std::string failed_call() {
  return locked([](Runtime& runtime) { return runtime.failed_call; });
}

void set_deferred(bool deferred) {
  locked([&](Runtime& runtime) { runtime.is_deferred = deferred; });
}

void watch_added_nodes(std::function<void(const cudaGraphNodeParams&)> watch) {
  locked([&](Runtime& runtime) { runtime.added_node = std::move(watch); });
}

Live live() {
  return locked([](Runtime& runtime) { return runtime.live; });
}

std::vector<KernelRun> take_kernel_runs() {
  return locked([](Runtime& runtime) { return std::exchange(runtime.kernel_runs, {}); });
}

cudaError_t launch_kernel(const char* name, cudaStream_t stream) {
  return call("cudaLaunchKernel",
              [&](Runtime& runtime) { return runtime.enqueue(stream, cudaGraphNodeTypeKernel, {.kernel = name}); });
}

void forget_process() {
  locked([](Runtime& runtime) { runtime.process = 0; });
}

int num_forbidden_calls() {
  return locked([](Runtime& runtime) { return runtime.num_forbidden_calls; });
}

}  // namespace fake_cuda
