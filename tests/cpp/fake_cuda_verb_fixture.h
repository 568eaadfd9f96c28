#pragma once

#include "fake_cuda_fixture.h"

// One stream, and what the backend's verbs take.
namespace l2pf::testing_support {

class FakeCudaVerbFixture : public FakeCudaFixture {
 protected:
  void SetUp() override {
    FakeCudaFixture::SetUp();
    L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  void TearDown() override {
    cudaStreamDestroy(stream);
    FakeCudaFixture::TearDown();
  }

  static std::vector<Segment> segments(size_t num_segments) {
    std::vector<Segment> made;
    for (uintptr_t i = 0; i < num_segments; ++i) made.push_back({0x1000 * (i + 1), 256, {}});
    return made;
  }
  std::shared_ptr<Table> table(CudaBackend& backend) {
    auto plan = std::make_shared<Plan>();
    plan->device = 0;
    plan->windows.push_back({0, CollectiveKind::kAllReduce, segments(2), 512});
    const std::vector<WindowSetting> settings{{512, Form::kAuto}};
    return backend.make_table(plan, settings, place());
  }
  Place place() const { return {0, stream}; }

  cudaStream_t stream = nullptr;
};

}  // namespace l2pf::testing_support
