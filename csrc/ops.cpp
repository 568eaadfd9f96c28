#include <torch/csrc/stable/library.h>

#include "ops_impl.h"

STABLE_TORCH_LIBRARY(dsv41, m) {
  // Model code and compiled graphs.
  m.def("l2_prefetch(Tensor(a!) anchor, Tensor[] weights, int budget_bytes=-1) -> ()");
  m.def("l2_join(Tensor(a!) anchor) -> ()");
  m.def("window_begin(Tensor(a!) input, Tensor[] weights, int budget_bytes=-1) -> ()");
  m.def("window_end(Tensor(a!) output) -> ()");
  m.def("join_windows(Tensor(a!) anchor) -> ()");
  m.def("collective_begin(Tensor(a!) input, str kind) -> ()");
  m.def("collective_end(Tensor(a!) output) -> ()");
  m.def("record_weight(Tensor[] weights) -> ()");
  m.def("record_unplanned(int num_bytes) -> ()");
  m.def("begin_forward(int prefetcher, int model, int num_tokens, str mode) -> bool");
  m.def("end_forward() -> ()");
  m.def("abort_forward() -> ()");
  m.def("status() -> str");
  m.def("status_words() -> int[]");

  // Management; never traced.
  m.def(
      "create_prefetcher(int budget_bytes, bool all_gather, str form, str placement, int max_tokens, "
      "bool back_to_back, bool strict, int in_flight_bytes=-1) -> int");
  m.def("destroy_prefetcher(int prefetcher) -> ()");
  m.def("invalidate(int prefetcher) -> ()");
  m.def("pause(int prefetcher) -> ()");
  m.def("resume(int prefetcher) -> ()");
  m.def(
      "set_window(int prefetcher, int model, int num_tokens, str mode, int collective_index, int budget_bytes, "
      "str form) -> ()");
  m.def("plan_segments(int prefetcher, int model, int num_tokens, str mode) -> int[]");
  m.def("calibration_key(int device) -> str");
  m.def("calibrate(int device) -> str");
  m.def(
      "apply_calibration(int device, str form, int num_ctas, int piece_bytes, int start_delay_ns, int hot_knee_bytes, "
      "float fill_gbps, int[] partition_of_sm) -> ()");

  // Demo, tests and benchmarks: a collective of one rank whose peer answers after a set delay.
  m.def("emulated_all_reduce(Tensor(a!) data, float delay_us, int num_ctas=4) -> ()");
}

// One kernel for every device: the bodies tell devices apart, and so name an unsupported one in their own words.
STABLE_TORCH_LIBRARY_IMPL(dsv41, CompositeExplicitAutograd, m) {
  using namespace l2pf::ops;
  m.impl("l2_prefetch", TORCH_BOX(&l2_prefetch));
  m.impl("l2_join", TORCH_BOX(&l2_join));
  m.impl("window_begin", TORCH_BOX(&window_begin));
  m.impl("window_end", TORCH_BOX(&window_end));
  m.impl("join_windows", TORCH_BOX(&join_windows));
  m.impl("collective_begin", TORCH_BOX(&collective_begin));
  m.impl("collective_end", TORCH_BOX(&collective_end));
  m.impl("record_weight", TORCH_BOX(&record_weight));
  m.impl("record_unplanned", TORCH_BOX(&record_unplanned));
  m.impl("begin_forward", TORCH_BOX(&begin_forward));
  m.impl("end_forward", TORCH_BOX(&end_forward));
  m.impl("abort_forward", TORCH_BOX(&abort_forward));
  m.impl("status", TORCH_BOX(&status));
  m.impl("status_words", TORCH_BOX(&status_words));
  m.impl("create_prefetcher", TORCH_BOX(&create_prefetcher));
  m.impl("destroy_prefetcher", TORCH_BOX(&destroy_prefetcher));
  m.impl("invalidate", TORCH_BOX(&invalidate));
  m.impl("pause", TORCH_BOX(&l2pf::ops::pause));  // unistd.h has a pause too
  m.impl("resume", TORCH_BOX(&resume));
  m.impl("set_window", TORCH_BOX(&set_window));
  m.impl("plan_segments", TORCH_BOX(&plan_segments));
  m.impl("calibration_key", TORCH_BOX(&calibration_key));
  m.impl("calibrate", TORCH_BOX(&calibrate));
  m.impl("apply_calibration", TORCH_BOX(&apply_calibration));
  m.impl("emulated_all_reduce", TORCH_BOX(&emulated_all_reduce));
}
