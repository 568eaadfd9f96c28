#include "state_model.h"

#include "forward.h"
#include "random.h"

// Random interleavings of every operator and of captures that begin and end anywhere, on the core and on the model.
namespace l2pf {
namespace {

using testing_support::FakeBackend;
using testing_support::new_fake_backend;
using testing_support::place;
using testing_support::Random;
using testing_support::StateModel;

constexpr int kNumLives = 2000;
constexpr int kNumSteps = 400;
constexpr int64_t kWeightBytes = 64;

// One prefetcher's life, on both.
class Life {
 public:
  explicit Life(uint32_t seed) : random_(seed) {}

  ~Life() {
    while (current_forward()) end_forward();
    Outstanding::of(backend_).join(main_, 0);
    backend_.captures.clear();
  }

  void step() {
    if (!model_.in_forward() || random_.one_in(40)) {
      random_.one_in(10) ? between_forwards() : begin();
    } else {
      inside_a_forward(random_.pick(0, 99));
    }
    compare();
  }

  const std::string& history() const { return history_; }
  std::map<std::string, int> num_verbs;  // by name

 private:
  void between_forwards() {
    const int64_t op = random_.pick(0, 9);
    if (op < 2) {
      toggle_capture();
    } else if (op < 4) {
      switch_off();
    } else if (op < 8) {
      invalidate();
    } else {
      end(false);  // more ends than begins
    }
  }

  void inside_a_forward(int64_t op) {
    if (op < 48) {
      collective();
    } else if (op < 84) {
      record();
    } else if (op < 99) {
      end(random_.one_in(8));
    } else {
      random_.one_in(2) ? invalidate() : toggle_capture();
    }
  }

  void begin() {
    const Signature signature{random_.pick(1, 2), 1, "decode"};
    note("begin " + std::to_string(signature.model));
    const bool begun = begin_forward(1, prefetcher_, signature, !backend_.captures.empty());
    EXPECT_EQ(begun, model_.begin(signature));
  }

  void collective() {
    // Mostly what was learned, so that windows open.
    const size_t index = current_forward() ? static_cast<size_t>(current_forward()->num_collectives()) : 0;
    const auto kind = random_.one_in(25) ? CollectiveKind::kBroadcast
                      : index % 2 == 0   ? CollectiveKind::kAllReduce
                                         : CollectiveKind::kAllGather;
    note("collective " + std::string(to_string(kind)));
    if (Forward* forward = current_forward()) forward->collective_begin(kind, backend_, main_);
    model_.collective_begin(kind);
    if (random_.one_in(100)) toggle_capture();
    if (random_.one_in(20)) return;  // its end is lost, as when the collective raises
    if (Forward* forward = current_forward()) forward->collective_end(backend_, main_);
    model_.collective_end();
  }

  void record() {
    const auto address = static_cast<uintptr_t>(0x1000 * random_.pick(1, 4));
    note("record " + std::to_string(address));
    if (Forward* forward = current_forward())
      if (forward->num_collectives() > 0) forward->record_weight(Segment{address, kWeightBytes, nullptr}, 0);
    model_.record(address);
  }

  void end(bool aborted) {
    note(aborted ? "abort" : "end");
    aborted ? abort_forward() : end_forward();
    model_.end(aborted);
  }

  void invalidate() {
    note("invalidate");
    prefetcher_->invalidate();
    model_.invalidate();
  }

  void toggle_capture() {
    if (model_.capture_id == 0) {
      model_.capture_id = next_capture_id_++;
      backend_.captures[1] = model_.capture_id;
    } else {
      model_.capture_id = 0;
      backend_.captures.clear();
    }
    note("capture " + std::to_string(model_.capture_id));
  }

  void switch_off() {
    const Signature signature{random_.pick(1, 2), 1, "decode"};
    auto& known = model_.signatures[signature];
    const auto index = static_cast<size_t>(random_.pick(0, 3));
    if (index >= known.plan.size() || known.plan[index].weights.empty()) return;
    note("switch off " + std::to_string(index));
    prefetcher_->set_window(signature, static_cast<int64_t>(index), 0, {}, backend_, main_);
    known.off.insert(index);
    EXPECT_TRUE(backend_.verbs.back().starts_with("patch_table"));
    backend_.verbs.pop_back();
  }

  void compare() {
    const auto verbs = backend_.take_verbs();
    EXPECT_EQ(verbs, std::exchange(model_.verbs, {}));
    for (const auto& verb : verbs) ++num_verbs[verb.substr(0, verb.find(' '))];
    EXPECT_EQ(current_forward() != nullptr, model_.in_forward());
    if (!model_.in_forward()) EXPECT_EQ(Outstanding::of(backend_).any(0), model_.is_outstanding());
    prefetcher_->for_each([&](const Signature& signature, const SignatureState& state) {
      const auto& known = model_.signatures[signature];
      EXPECT_EQ(state.state(), known.state);
      EXPECT_EQ(state.num_eager(), known.num_eager);
      EXPECT_EQ(state.num_captures(), known.num_captures);
      EXPECT_EQ(state.num_launched(), known.num_launched);
      EXPECT_FALSE(state.latched_off());
      EXPECT_EQ(sights_of(state.plan().get()), known.plan);
    });
  }

  static StateModel::Sights sights_of(const Plan* plan) {
    StateModel::Sights sights;
    for (size_t i = 0; plan && i < plan->collectives.size(); ++i) {
      sights.push_back({plan->collectives[i], {}});
      const int window_index = plan->window_index(static_cast<int64_t>(i));
      if (window_index < 0) continue;
      for (const Segment& segment : plan->windows[window_index].segments) sights[i].weights.push_back(segment.address);
    }
    return sights;
  }

  void note(const std::string& what) { history_ += what + "\n"; }

  Random random_;
  StateModel model_;
  FakeBackend& backend_ = new_fake_backend();
  std::shared_ptr<Prefetcher> prefetcher_ = std::make_shared<Prefetcher>(PrefetcherOptions{.budget_bytes = 1 << 20});
  const Place main_ = place(0);
  uint64_t next_capture_id_ = 1;
  std::string history_;
};

TEST(StateModel, TheCoreDoesWhatTheStateTableSays) {
  std::map<std::string, int> num_verbs;
  for (uint32_t seed = 1; seed <= kNumLives; ++seed) {
    Life life(seed);
    for (int i = 0; i < kNumSteps; ++i) {
      life.step();
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << "\n" << life.history();
    }
    for (const auto& [verb, num] : life.num_verbs) num_verbs[verb] += num;
  }
  for (const auto* verb : {"make_table", "fork", "mark", "attach", "join"})
    EXPECT_GT(num_verbs[verb], kNumLives) << verb << ": the random lives should show every verb";
}

}  // namespace
}  // namespace l2pf
