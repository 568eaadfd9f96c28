#pragma once

#include <span>
#include <vector>

#include "../backend.h"
#include "block_pool.h"
#include "prefetch_kernel.h"
#include "table_image.h"

namespace l2pf {

// What prefetched weights may fill: L2 holds activations and the weights being read as well. Measured on an H200 of
// 60 MiB: behind 15 us, decode steps of a Llama-70B class gain up to 36..40 MiB (0.918 of off, at 24 MiB 0.932).
inline constexpr double kUsableShareOfL2 = 0.6;

// What turns a setting into a header on one GPU.
struct KernelChoice {
  Form default_form = Form::kLoad;  // what Form::kAuto means here
  bool has_bulk = false;            // cp.async.bulk.prefetch exists from sm_90 on
  int num_ctas = 0;
  int piece_bytes = 16384;
  int start_delay_ns = kDefaultStartDelayNs;
  int64_t in_flight_bytes = 0;   // cap of a setting that leaves it to us; 0: none
  uint64_t partition_of_sm = 0;  // device memory, see WindowHeader; 0 until calibration found two partitions

  // What can be asked for here.
  std::vector<Form> forms() const;
  WindowHeader header(const WindowSetting& setting) const;
  LaunchShape shape() const { return {num_ctas}; }
};

// A plan in device memory: one block, each window a header and its segments. Its last owner may be a graph.
class CudaTable final : public Table {
 public:
  // Enqueues the copy on `stream`.
  CudaTable(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings, const KernelChoice& choice,
            BlockPool& pool, cudaStream_t stream);
  ~CudaTable() override;

  void patch(int window_index, const WindowSetting& setting, cudaStream_t stream);

  WindowHead* window(int window_index) const;
  int num_segments(int window_index) const { return num_segments_[window_index]; }
  const LaunchShape& shape() const { return shape_; }

 private:
  const KernelChoice choice_;
  const LaunchShape shape_;
  BlockPool& pool_;
  BlockPool::Block block_;
  std::vector<size_t> offsets_;    // of each window in the block, bytes
  std::vector<int> num_segments_;  // of each window; asked for after the plan is gone too
};

}  // namespace l2pf
