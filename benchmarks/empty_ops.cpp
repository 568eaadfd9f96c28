// Operators without a body and with the schemas of dsv41: what torch's dispatcher and boxing cost by themselves.
#include <torch/csrc/stable/library.h>

#include "bench_api.h"

namespace {

using torch::stable::Tensor;

void collective_begin(Tensor, std::string) {}
void collective_end(Tensor) {}
void record_weight(std::vector<Tensor>) {}
void record_unplanned(int64_t) {}
void l2_join(Tensor) {}
void end_forward() {}

}  // namespace

STABLE_TORCH_LIBRARY(dsv41_bench, m) {
  m.def("collective_begin(Tensor(a!) input, str kind) -> ()");
  m.def("collective_end(Tensor(a!) output) -> ()");
  m.def("record_weight(Tensor[] weights) -> ()");
  m.def("record_unplanned(int num_bytes) -> ()");
  m.def("l2_join(Tensor(a!) anchor) -> ()");
  m.def("end_forward() -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(dsv41_bench, CompositeExplicitAutograd, m) {
  m.impl("collective_begin", TORCH_BOX(&collective_begin));
  m.impl("collective_end", TORCH_BOX(&collective_end));
  m.impl("record_weight", TORCH_BOX(&record_weight));
  m.impl("record_unplanned", TORCH_BOX(&record_unplanned));
  m.impl("l2_join", TORCH_BOX(&l2_join));
  m.impl("end_forward", TORCH_BOX(&end_forward));
}

int l2pf_bench_nothing(const void*, int, long long, void*) { return 0; }
