#pragma once

#include "fake_backend.h"
#include "forward.h"

namespace l2pf::testing_support {

// One collective and the weights read after it.
struct Step {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<Segment> weights;
};

// Runs forwards of one prefetcher over a fake device, the way model code calls the operators.
class ForwardFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kCapture = 5;

  FakeBackend& backend = new_fake_backend();
  std::shared_ptr<Prefetcher> prefetcher = std::make_shared<Prefetcher>(PrefetcherOptions{});
  Signature signature{1, 1, "decode"};
  Place main = place(0, 1);
  // Two windows, and a last collective without weights.
  std::vector<Step> steps{{CollectiveKind::kAllReduce, {weight(0x1000), weight(0x2000)}},
                          {CollectiveKind::kAllGather, {weight(0x3000, 128)}},
                          {CollectiveKind::kAllReduce, {}}};

  void use(PrefetcherOptions options) { prefetcher = std::make_shared<Prefetcher>(options); }

  bool begin() {
    const bool capturing = backend.captures.contains(reinterpret_cast<uintptr_t>(main.stream));
    return begin_forward(1, prefetcher, signature, capturing);
  }

  void collective(CollectiveKind kind, const std::vector<Segment>& weights = {}) {
    current_forward()->collective_begin(kind, backend, main);
    current_forward()->collective_end(backend, main);
    for (const auto& segment : weights) current_forward()->record_weight(segment, main.device);
  }

  void run(const std::vector<Step>& steps_to_run) {
    ASSERT_TRUE(begin());
    for (const auto& step : steps_to_run) collective(step.kind, step.weights);
    end_forward();
  }
  void eager() { run(steps); }
  void capture(const std::vector<Step>& steps_to_run) {
    backend.captures[1] = kCapture;
    run(steps_to_run);
    backend.captures.clear();
  }
  void capture() { capture(steps); }

  // The state of `signature`; call it between forwards.
  SignatureState state() const {
    std::optional<SignatureState> found;
    prefetcher->for_each([&](const Signature& key, const SignatureState& value) {
      if (key == signature) found = value;
    });
    return found.value_or(SignatureState());
  }
  std::string reason() const { return state().reason(); }
  bool outstanding(DeviceIndex device = 0) const { return Outstanding::of(backend).any(device); }

  void TearDown() override { EXPECT_EQ(current_forward(), nullptr) << "a forward is left open"; }
};

}  // namespace l2pf::testing_support
