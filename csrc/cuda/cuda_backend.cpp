#include "cuda_backend.h"

#include <algorithm>

#include "captures.h"
#include "device_scope.h"
#include "graveyard.h"
#include "probe_kernels.h"

namespace l2pf {
namespace {

// The length of a collective that was not measured.
constexpr double kUnknownWindowUs = 25;
// Of a window's length, what a prefetch cannot use: it starts later than the collective, and what it brings last comes
// too late. A fit to an H200 (notes.md there): where windows are timed as 8 to 11 us, what fits into 4 us less takes at
// most 0.008 of a step more than the best fixed budget.
constexpr double kPrefetchLagUs = 4;
constexpr double kLeastUsableUs = 1;
// Longer than a host takes from one event over a collective to the next event. Without it the GPU waits for the host
// in between: a collective of 6 us was timed with 17 to 22 us.
constexpr int64_t kHeldNs = 300'000;
// A kernel as long as a short collective. What the events show of it beyond that is theirs and the launch's.
constexpr int64_t kReferenceNs = 5'000;
constexpr double kShortestUs = 0.1;  // 0 would say that the collective was not timed

cudaStream_t stream_of(const Place& place) { return static_cast<cudaStream_t>(place.stream); }

int attribute(cudaDeviceAttr name, DeviceIndex device) {
  int value = 0;
  L2PF_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

// Events with timing; made in eager code only. It holds the stream first, so that all it times is enqueued by then, and
// times a kernel of known length too.
class EventTimer final : public Timer {
 public:
  explicit EventTimer(cudaStream_t stream) {
    L2PF_CUDA_CHECK(launch_spin(kHeldNs, stream));
    L2PF_CUDA_CHECK(cudaEventRecord(reference_, stream));
    L2PF_CUDA_CHECK(launch_spin(kReferenceNs, stream));
    L2PF_CUDA_CHECK(cudaEventRecord(begin_, stream));
  }
  void stop(const Place& place) override {
    L2PF_CUDA_CHECK(cudaEventRecord(end_, stream_of(place)));
    stopped_ = true;
  }
  std::optional<double> elapsed_us() override {
    if (!stopped_) return std::nullopt;
    const RelaxedCaptureScope relaxed;  // a query would end another thread's capture
    const cudaError_t error = cudaEventQuery(end_);
    if (error == cudaErrorNotReady) {
      if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();  // no error, but some runtimes keep it
      return std::nullopt;
    }
    cuda_check(error, "cudaEventQuery");
    float elapsed_ms = 0;
    float reference_ms = 0;
    L2PF_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, begin_, end_));
    L2PF_CUDA_CHECK(cudaEventElapsedTime(&reference_ms, reference_, begin_));
    const double overhead_us = std::max(0.0, reference_ms * 1e3 - kReferenceNs / 1e3);
    return std::max(kShortestUs, elapsed_ms * 1e3 - overhead_us);
  }

 private:
  Event reference_{cudaEventDefault};
  Event begin_{cudaEventDefault};
  Event end_{cudaEventDefault};
  bool stopped_ = false;
};

// Segments by value go out in as many launches as their number asks for.
template <typename Launch>
void for_each_inline_window(const Prefetch& prefetch, const KernelChoice& choice, const Launch& launch) {
  std::span<const Segment> left = prefetch.segments;
  while (!left.empty()) {
    const auto batch = left.first(std::min<size_t>(left.size(), kMaxInlineSegments));
    launch(inline_window(batch, choice.header({0, prefetch.form, prefetch.in_flight_bytes})),
           static_cast<int>(batch.size()));
    left = left.subspan(batch.size());
  }
}

}  // namespace

CudaBackend::Device::Device(DeviceIndex index) : tables(index) {
  cudaDeviceProp properties{};
  L2PF_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  info.name = properties.name;
  info.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  has_launch_order = major >= 9;
  choice.has_bulk = major >= 9;
  num_sms = attribute(cudaDevAttrMultiProcessorCount, index);
  choice.num_ctas = std::max(1, num_sms / 2);
  choice.in_flight_bytes = properties.integrated ? kSharedMemoryInFlightBytes : 0;
  info.forms = choice.forms();
  L2PF_CUDA_CHECK(footprint_of_prefetch(choice.shape(), &info.footprint.emplace()));
  info.footprint->in_flight_bytes = choice.in_flight_bytes;
}

CudaBackend& CudaBackend::instance() {
  static auto& backend = *new CudaBackend;  // never destroyed: CUDA may be gone when static destructors run
  return backend;
}

CudaBackend::Device& CudaBackend::device(DeviceIndex index) {
  const std::lock_guard lock(mutex_);
  auto& slot = devices_[index];
  if (!slot) {
    const DeviceScope scope(index);
    // A stream may be made while another thread captures, which an allocation on the way may not.
    const RelaxedCaptureScope relaxed;
    slot = std::make_unique<Device>(index);
  }
  return *slot;
}

DeviceIndex CudaBackend::current_device() {
  DeviceIndex index = 0;
  L2PF_CUDA_CHECK(cudaGetDevice(&index));
  return index;
}

DeviceInfo CudaBackend::device_info(DeviceIndex index) {
  const Device& own = device(index);
  const std::lock_guard lock(mutex_);  // `apply` changes it
  return own.info;
}

int64_t CudaBackend::auto_budget_bytes(DeviceIndex index, double window_us) {
  const Device& own = device(index);
  const std::lock_guard lock(mutex_);
  if (own.fill_gbps <= 0) return static_cast<int64_t>(kUsableShareOfL2 * static_cast<double>(own.info.l2_bytes));
  const double fill_bytes_per_us = own.fill_gbps * 1e3;
  const double usable_us = std::max(kLeastUsableUs, (window_us > 0 ? window_us : kUnknownWindowUs) - kPrefetchLagUs);
  return std::min(own.hot_knee_bytes, static_cast<int64_t>(usable_us * fill_bytes_per_us));
}

int CudaBackend::num_sms(DeviceIndex index) { return device(index).num_sms; }

void CudaBackend::apply(DeviceIndex index, const Choice& choice) {
  Device& own = device(index);
  BlockPool::Block map;
  if (!choice.partition_of_sm.empty()) {
    if (static_cast<int>(choice.partition_of_sm.size()) != own.num_sms)
      throw std::invalid_argument("expected one partition for each of " + std::to_string(own.num_sms) + " SMs, got " +
                                  std::to_string(choice.partition_of_sm.size()));
    const std::vector<uint8_t> bytes(choice.partition_of_sm.begin(), choice.partition_of_sm.end());
    const DeviceScope scope(index);
    const RelaxedCaptureScope relaxed;
    map = own.tables.take(bytes.size());
    const cudaError_t error = cudaMemcpy(map.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    if (error != cudaSuccess) own.tables.give_back(map);
    cuda_check(error, "cudaMemcpy");
  }
  const std::lock_guard lock(mutex_);
  // An earlier map stays where it is: tables made with it still read it.
  own.choice.partition_of_sm = reinterpret_cast<uint64_t>(map.data);
  own.choice.default_form = choice.form == Form::kAuto ? Form::kLoad : choice.form;
  own.choice.num_ctas = choice.num_ctas;
  own.info.footprint->num_ctas = choice.num_ctas;
  own.choice.piece_bytes = choice.piece_bytes;
  own.choice.start_delay_ns = choice.start_delay_ns;
  own.hot_knee_bytes = choice.hot_knee_bytes;
  own.fill_gbps = choice.fill_gbps;
  own.info.forms = own.choice.forms();
}

uint64_t CudaBackend::capture_id(const Place& place) { return capture_id_of(stream_of(place)); }

std::shared_ptr<Table> CudaBackend::make_table(std::shared_ptr<const Plan> plan,
                                               std::span<const WindowSetting> settings, const Place& place) {
  Graveyard::instance().drain();
  Device& own = device(place.device);
  const DeviceScope scope(place.device);
  // The block may have been read by a prefetch on the side stream, which other streams than this one joined.
  own.order.order(own.side_stream, stream_of(place));
  return std::make_shared<CudaTable>(std::move(plan), settings, own.choice, own.tables, stream_of(place));
}

void CudaBackend::patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) {
  if (capture_id(place) != 0) throw BackendError("a window cannot be set while its stream is being captured");
  const DeviceScope scope(place.device);
  static_cast<CudaTable&>(table).patch(window_index, setting, stream_of(place));
}

void CudaBackend::fork(const Prefetch& prefetch, const Place& place) {
  Graveyard::instance().drain();
  Device& own = device(place.device);
  const DeviceScope scope(place.device);
  own.order.order(stream_of(place), own.side_stream);
  if (prefetch.table) {
    auto& table = static_cast<CudaTable&>(*prefetch.table);
    L2PF_CUDA_CHECK(launch_prefetch(table.window(prefetch.window_index), table.num_segments(prefetch.window_index),
                                    table.shape(), own.side_stream));
  } else {
    for_each_inline_window(prefetch, own.choice, [&](const InlineWindow& window, int num_segments) {
      L2PF_CUDA_CHECK(launch_prefetch(window, num_segments, own.choice.shape(), own.side_stream));
    });
  }
}

void CudaBackend::mark(const Place& place) { Captures::instance().mark(stream_of(place)); }

void CudaBackend::attach(const Prefetch& prefetch, Placement placement, const Place& place) {
  Device& own = device(place.device);
  const DeviceScope scope(place.device);
  if (!own.has_launch_order) placement = Placement::kSideStream;
  auto& captures = Captures::instance();
  const CarriedRecords carried = carried_records(prefetch.carried);
  if (prefetch.table) {
    auto& table = static_cast<CudaTable&>(*prefetch.table);
    captures.attach(stream_of(place), placement,
                    [&](cudaGraph_t graph, const auto& nodes, const auto& edges) {
                      cudaGraphNode_t node{};
                      L2PF_CUDA_CHECK(add_prefetch_node(
                          &node, graph, nodes.data(), edges.data(), nodes.size(), table.window(prefetch.window_index),
                          table.num_segments(prefetch.window_index), table.shape(), carried));
                      return node;
                    },
                    {prefetch.table});
    return;
  }
  for_each_inline_window(prefetch, own.choice, [&](const InlineWindow& window, int num_segments) {
    Held held;
    for (const Segment& segment : prefetch.segments) held.push_back(segment.owner);
    captures.attach(
        stream_of(place), placement,
        [&](cudaGraph_t graph, const auto& nodes, const auto& edges) {
          cudaGraphNode_t node{};
          L2PF_CUDA_CHECK(add_prefetch_node(&node, graph, nodes.data(), edges.data(), nodes.size(), window,
                                            num_segments, own.choice.shape(), carried));
          return node;
        },
        std::move(held));
  });
}

void CudaBackend::join(const Place& place) {
  if (capture_id(place) != 0) {
    Captures::instance().join(stream_of(place));
    return;
  }
  Device& own = device(place.device);
  const DeviceScope scope(place.device);
  own.order.order(own.side_stream, stream_of(place));
}

std::shared_ptr<Timer> CudaBackend::start_timer(const Place& place) {
  const DeviceScope scope(place.device);
  return std::make_shared<EventTimer>(stream_of(place));
}

}  // namespace l2pf
