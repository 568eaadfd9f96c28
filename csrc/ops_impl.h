#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops_text.h"

// The operators' bodies; ops.cpp is their table of contents, DESIGN section 3 their description.
namespace l2pf::ops {

using torch::stable::Tensor;

void l2_prefetch(Tensor anchor, std::vector<Tensor> weights, int64_t budget_bytes);
void l2_join(Tensor anchor);
void window_begin(Tensor input, std::vector<Tensor> weights, int64_t budget_bytes);
void window_end(Tensor output);
// What a compiled graph ends with. Inside a forward whose windows go on it is a no-op: the forward's end joins.
void join_windows(Tensor anchor);
void collective_begin(Tensor input, Text kind);
void collective_end(Tensor output);
void record_weight(std::vector<Tensor> weights);
void record_unplanned(int64_t num_bytes);
bool begin_forward(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode);
void end_forward();
void abort_forward();
std::string status();
// The bytes of `status`, eight a number, behind their count: torch 2.10 and 2.11 never free a text that they are given.
std::vector<int64_t> status_words();

int64_t create_prefetcher(int64_t budget_bytes, bool all_gather, Text form, Text placement, int64_t max_tokens,
                          bool back_to_back, bool strict, int64_t in_flight_bytes);
void destroy_prefetcher(int64_t prefetcher);
void invalidate(int64_t prefetcher);
void pause(int64_t prefetcher);
void resume(int64_t prefetcher);
void set_window(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode, int64_t collective_index,
                int64_t budget_bytes, Text form);
std::vector<int64_t> plan_segments(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode);
std::string calibration_key(int64_t device);
std::string calibrate(int64_t device);
void apply_calibration(int64_t device, Text form, int64_t num_ctas, int64_t piece_bytes, int64_t start_delay_ns,
                       int64_t hot_knee_bytes, double fill_gbps, std::vector<int64_t> partition_of_sm);
void emulated_all_reduce(Tensor data, double delay_us, int64_t num_ctas);

}  // namespace l2pf::ops
