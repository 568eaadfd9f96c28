#include "calibration.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "../json.h"
#include "cuda_table.h"
#include "emulated_collective.h"
#include "overlap_graph.h"
#include "partitions.h"
#include "probe.h"
#include "probe_kernels.h"

namespace l2pf {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kSamples = 7;
// A read counts as hot while it runs at this share of the rate of a small one.
constexpr double kHotShare = 0.85;
// The most CTAs that fill at this share of the best rate: spread over more SMs, a prefetch that runs into the GEMM is
// in its way for less. Measured on an H200, 16 MiB behind 5 us: 132 CTAs 0.952 of off, 33 CTAs 0.973.
constexpr double kFillShare = 0.95;
constexpr int kStartDelaysNs[] = {0, 400, 800, 1200, 1600, 2400};
constexpr int kCollectiveSamples = 81;
// Longer than the fill of a window, so that what is timed ends with the collective.
constexpr double kEmulatedDelayUs = 20;
// What a start delay costs, as a share of it: a window that the fill takes whole saves up to 0.6 of the time that it
// is shortened by, most windows are longer than their fill.
constexpr double kStartDelayCost = 0.3;

// What a collective takes by itself and while a prefetch runs, us.
struct CollectiveLatency {
  double alone_us;
  double beside_us;
};

// The probes of one device and what they share.
class Probes {
 public:
  explicit Probes(DeviceIndex device) : device_(device), scope_(device) {
    cudaDeviceProp properties{};
    L2PF_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    num_sms_ = properties.multiProcessorCount;
    result_.l2_bytes = properties.l2CacheSize;
    result_.key = calibration_key(device);
    choice_.has_bulk = has_launch_order_ = properties.major >= 9;
    choice_.in_flight_bytes = properties.integrated ? kSharedMemoryInFlightBytes : 0;
    result_.window_bytes = std::clamp<int64_t>(result_.l2_bytes / 4, kMiB, 16 * kMiB) & ~(kMiB - 1);
    buffer_ = std::make_unique<ProbeBuffer>(4 * std::max(result_.l2_bytes, 8 * result_.window_bytes));
    head_ = std::make_unique<ProbeBuffer>(sizeof(WindowHead) + sizeof(SegmentRecord));
    sm_map_ = std::make_unique<ProbeBuffer>(num_sms_);
    L2PF_CUDA_CHECK(cudaMemsetAsync(buffer_->data(), 0, static_cast<size_t>(buffer_->num_bytes()), stream_));
  }

  Calibration run() {
    result_.partition_of_sm = measure_partitions(*buffer_, num_sms_, stream_);
    if (!result_.partition_of_sm.empty()) {
      const std::vector<uint8_t> map(result_.partition_of_sm.begin(), result_.partition_of_sm.end());
      L2PF_CUDA_CHECK(cudaMemcpy(sm_map_->data(), map.data(), map.size(), cudaMemcpyHostToDevice));
      choice_.partition_of_sm = reinterpret_cast<uint64_t>(sm_map_->data());
    }
    measure_reads();
    for (const Form form : forms()) measure_form(form);
    result_.hot_knee_bytes = measure_hot_knee();
    choose();
    choose_start_delay();
    for (const Form form : forms()) {
      const auto [alone_us, beside_us] = measure_collective(form);
      result_.collective_slowdown[form] = beside_us / alone_us;
    }
    return result_;
  }

 private:
  std::vector<Form> forms() const {
    auto forms = choice_.forms();
    std::erase(forms, Form::kLoadKeep);  // like kLoad, until a model reads something else meanwhile
    return forms;
  }

  // Memory that was not touched for more than L2 holds.
  const char* cold_window() {
    const int64_t num_windows = buffer_->num_bytes() / result_.window_bytes;
    next_window_ = (next_window_ + 1) % num_windows;
    return buffer_->data() + next_window_ * result_.window_bytes;
  }

  void read(const char* data, int64_t num_bytes) {
    L2PF_CUDA_CHECK(launch_full_read(data, num_bytes, 4 * num_sms_, stream_));
  }

  // Writes the window's head and segment ahead of the launch, as a table would hold them.
  void set_window(const char* data, int64_t num_bytes, Form form, int num_ctas) {
    choice_.num_ctas = num_ctas;
    struct {
      WindowHead head;
      SegmentRecord segment;
    } image{{choice_.header({num_bytes, form}), {}}, {reinterpret_cast<uint64_t>(data), num_bytes, 0, 0}};
    L2PF_CUDA_CHECK(cudaMemcpyAsync(head_->data(), &image, sizeof(image), cudaMemcpyHostToDevice, stream_));
  }
  void prefetch(int num_ctas) {
    L2PF_CUDA_CHECK(launch_prefetch(reinterpret_cast<WindowHead*>(head_->data()), 1, LaunchShape{num_ctas}, stream_));
  }

  void measure_reads() {
    const int64_t large = 2 * result_.l2_bytes;
    result_.dram_read_gbps =
        large / median_of(3, [&] { return stream_.time_us([&] { read(buffer_->data(), large); }); }) / 1e3;
    result_.cold_us = median_of(kSamples, [&] {
      const char* const data = cold_window();
      return stream_.time_us([&] { read(data, result_.window_bytes); });
    });
    result_.hot_us = median_of(kSamples, [&] {
      const char* const data = cold_window();
      const auto once = [&] { read(data, result_.window_bytes); };
      return stream_.time_us(once, once);
    });
  }

  // A hint's kernel ends before its lines arrive, so the fill is timed together with a read that needs them all.
  void measure_form(Form form) {
    double best_after_us = result_.cold_us;
    for (const int num_ctas : {num_sms_ / 8, num_sms_ / 4, num_sms_ / 2, num_sms_}) {
      if (num_ctas == 0) continue;
      const auto sample = [&](bool timed_prefetch) {
        return median_of(kSamples, [&] {
          const char* const data = cold_window();
          set_window(data, result_.window_bytes, form, num_ctas);
          const auto fill = [&] { prefetch(num_ctas); };
          const auto settle = [&] { L2PF_CUDA_CHECK(launch_spin(30'000, stream_)); };
          const auto use = [&] { read(data, result_.window_bytes); };
          if (timed_prefetch) return stream_.time_us([&] { fill(), use(); });
          return stream_.time_us(use, [&] { fill(), settle(); });
        });
      };
      const double after_us = sample(false);
      const double fill_us = std::max(0.1, sample(true) - after_us);
      best_after_us = std::min(best_after_us, after_us);
      result_.fill_gbps[form][num_ctas] = static_cast<double>(result_.window_bytes) / fill_us / 1e3;
    }
    result_.after_us[form] = best_after_us;
  }

  int64_t measure_hot_knee() {
    double small_rate = 0;
    int64_t knee = result_.window_bytes;
    for (double share = 0.2; share <= 1.0; share += 0.1) {
      const int64_t num_bytes = static_cast<int64_t>(share * static_cast<double>(result_.l2_bytes)) & ~(kMiB - 1);
      if (num_bytes <= 0) continue;
      const auto once = [&] { read(buffer_->data(), num_bytes); };
      const double rate =
          static_cast<double>(num_bytes) / median_of(5, [&] { return stream_.time_us(once, [&] { once(), once(); }); });
      small_rate = std::max(small_rate, rate);
      if (rate < kHotShare * small_rate) break;
      knee = num_bytes;
    }
    return std::min(knee, static_cast<int64_t>(kUsableShareOfL2 * static_cast<double>(result_.l2_bytes)));
  }

  // What a form is worth: the part of the cold read it takes away, as far as it gets there in a short window.
  void choose() {
    double best_worth = -1;
    double best_fill = 0;
    for (const auto& [form, by_ctas] : result_.fill_gbps)
      for (const auto& [num_ctas, gbps] : by_ctas) best_fill = std::max(best_fill, gbps);
    for (const auto& [form, by_ctas] : result_.fill_gbps) {
      double form_fill = 0;
      for (const auto& [num_ctas, gbps] : by_ctas) form_fill = std::max(form_fill, gbps);
      const double worth = (result_.cold_us - result_.after_us[form]) * form_fill / best_fill;
      if (worth <= best_worth) continue;
      best_worth = worth;
      result_.form = form;
      for (const auto& [num_ctas, gbps] : by_ctas)
        if (gbps >= kFillShare * form_fill) result_.num_ctas = num_ctas;
    }
  }

  // A prefetch that starts together with a collective gets in its way while it asks its peers.
  void choose_start_delay() {
    double least_us = std::numeric_limits<double>::max();
    for (const int delay_ns : kStartDelaysNs) {
      choice_.start_delay_ns = delay_ns;
      const auto [alone_us, beside_us] = measure_collective(result_.form);
      const double cost_us = beside_us - alone_us + kStartDelayCost * delay_ns / 1e3;
      if (cost_us >= least_us) continue;
      least_us = cost_us;
      result_.start_delay_ns = delay_ns;
    }
    choice_.start_delay_ns = result_.start_delay_ns;
  }

  // In a graph, where the prefetch starts with the collective and not a stream's wait later.
  CollectiveLatency measure_collective(Form form) {
    const Place place{device_, static_cast<cudaStream_t>(stream_)};
    const auto collective = [&] {
      EmulatedCollective::instance().launch(data_of_collective(), 64 << 10, kEmulatedDelayUs, 4, place);
    };
    OverlapGraph graph(collective, reinterpret_cast<WindowHead*>(head_->data()), LaunchShape{result_.num_ctas},
                       has_launch_order_ ? Placement::kInLine : Placement::kSideStream, stream_);
    const auto collective_us = [&](int64_t num_bytes) {
      set_window(cold_window(), num_bytes, form, result_.num_ctas);
      return stream_.time_us([&] { graph.launch(stream_); });
    };
    std::vector<double> alone_us;
    std::vector<double> beside_us;
    // In turns, so that a drift of the clocks meets both.
    for (int i = 0; i < kCollectiveSamples; ++i) {
      alone_us.push_back(collective_us(0));
      beside_us.push_back(collective_us(result_.window_bytes));
    }
    // What disturbs it makes it longer, never shorter.
    return {quantile(std::move(alone_us), 0.25), quantile(std::move(beside_us), 0.25)};
  }
  void* data_of_collective() { return buffer_->data() + buffer_->num_bytes() - (64 << 10); }

  const DeviceIndex device_;
  const DeviceScope scope_;
  int num_sms_ = 0;
  bool has_launch_order_ = false;
  Calibration result_;
  KernelChoice choice_;
  ProbeStream stream_;
  std::unique_ptr<ProbeBuffer> buffer_;
  std::unique_ptr<ProbeBuffer> head_;
  std::unique_ptr<ProbeBuffer> sm_map_;
  int64_t next_window_ = 0;
};

void write_key(JsonWriter& json, const CalibrationKey& key, const std::string& library_version) {
  json.member("gpu", key.gpu).member("driver", key.driver).member("library", library_version);
}

}  // namespace

Calibration calibrate(DeviceIndex device) {
  const RelaxedCaptureScope relaxed;  // another thread may be capturing
  return Probes(device).run();
}

CalibrationKey calibration_key(DeviceIndex device) {
  cudaDeviceProp properties{};
  L2PF_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  CalibrationKey key{properties.name, 0};
  L2PF_CUDA_CHECK(cudaDriverGetVersion(&key.driver));
  return key;
}

std::string to_json(const CalibrationKey& key, const std::string& library_version) {
  JsonWriter json;
  json.begin_object();
  write_key(json, key, library_version);
  return json.end_object().text();
}

std::string to_json(const Calibration& c, const std::string& library_version) {
  JsonWriter json;
  json.begin_object();
  write_key(json, c.key, library_version);
  json.member("l2_bytes", c.l2_bytes)
      .member("window_bytes", c.window_bytes)
      .member("hot_knee_bytes", c.hot_knee_bytes)
      .member("dram_read_gbps", c.dram_read_gbps)
      .member("cold_us", c.cold_us)
      .member("hot_us", c.hot_us);
  json.key("after_us").begin_object();
  for (const auto& [form, us] : c.after_us) json.member(to_string(form), us);
  json.end_object().key("fill_gbps").begin_object();
  for (const auto& [form, by_ctas] : c.fill_gbps) {
    json.key(to_string(form)).begin_object();
    for (const auto& [num_ctas, gbps] : by_ctas) json.member(std::to_string(num_ctas), gbps);
    json.end_object();
  }
  json.end_object().key("collective_slowdown").begin_object();
  for (const auto& [form, ratio] : c.collective_slowdown) json.member(to_string(form), ratio);
  json.end_object()
      .member("form", to_string(c.form))
      .member("num_ctas", c.num_ctas)
      .member("piece_bytes", c.piece_bytes)
      .member("start_delay_ns", c.start_delay_ns)
      .member("chosen_fill_gbps", c.chosen_fill_gbps());
  json.key("partition_of_sm").begin_array();
  for (const int64_t partition : c.partition_of_sm) json.value(partition);
  return json.end_array().end_object().text();
}

}  // namespace l2pf
