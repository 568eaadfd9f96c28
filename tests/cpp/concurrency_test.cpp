#include <algorithm>
#include <barrier>
#include <functional>
#include <thread>

#include "forward_fixture.h"
#include "registry.h"

// Threads that share a device, a prefetcher, or both. Built with L2PF_SANITIZE=thread these find races.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::new_fake_backend;
using testing_support::place;
using testing_support::Step;
using testing_support::weight;

constexpr int kNumThreads = 8;
constexpr int kNumRounds = 200;

class ConcurrencyTest : public ForwardFixture {
 protected:
  static void in_threads(int num_threads, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back(work, i);
    for (auto& thread : threads) thread.join();
  }

  // One forward of `who`, on a stream of its own.
  void forward_on(
      int stream, Signature who, const std::shared_ptr<Prefetcher>& with, bool capturing = false,
      const std::function<void()>& between = [] {}) {
    const Place own = place(0, static_cast<uintptr_t>(stream));
    ASSERT_TRUE(begin_forward(1, with, std::move(who), capturing));
    for (const Step& step : steps) {
      current_forward()->collective_begin(step.kind, backend, own);
      between();
      current_forward()->collective_end(backend, own);
      for (const auto& segment : step.weights) current_forward()->record_weight(segment, own.device);
    }
    end_forward();
  }

  SignatureState state_of(const Signature& wanted, const Prefetcher& in) const {
    SignatureState found;
    in.for_each([&](const Signature& key, const SignatureState& value) {
      if (key == wanted) found = value;
    });
    return found;
  }

  // The device sees one prefetch at a time, whichever threads they come from.
  void expect_forks_and_joins_to_alternate() const {
    bool is_outstanding = false;
    for (const auto& verb : backend.verbs) {
      const bool is_fork = verb.starts_with("fork ");
      if (!is_fork && !verb.starts_with("join ")) continue;
      ASSERT_NE(is_fork, is_outstanding) << verb;
      is_outstanding = is_fork;
    }
    EXPECT_FALSE(is_outstanding);
  }
};

TEST_F(ConcurrencyTest, EightThreadsWithASignatureEachShareADevice) {
  in_threads(kNumThreads, [&](int i) {
    for (int round = 0; round < kNumRounds; ++round) forward_on(i + 1, {i, 1, "decode"}, prefetcher);
  });
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(backend.num_verbs("make_table"), kNumThreads);
  EXPECT_EQ(backend.num_verbs("fork"), kNumThreads * (kNumRounds - 1) * 2);
  expect_forks_and_joins_to_alternate();
  for (int i = 0; i < kNumThreads; ++i) {
    const SignatureState own = state_of({i, 1, "decode"}, *prefetcher);
    EXPECT_EQ(own.state(), State::kPlanned);
    EXPECT_EQ(own.num_eager(), kNumRounds);
    EXPECT_EQ(own.num_launched(), 2);
  }
}

TEST_F(ConcurrencyTest, EightThreadsShareASignature) {
  in_threads(kNumThreads, [&](int i) {
    for (int round = 0; round < kNumRounds; ++round) forward_on(i + 1, signature, prefetcher);
  });
  EXPECT_FALSE(outstanding());
  expect_forks_and_joins_to_alternate();
  EXPECT_EQ(state().num_eager(), kNumThreads * kNumRounds);
  EXPECT_EQ(backend.num_verbs("make_table"), 1) << "all saw the same";
}

TEST_F(ConcurrencyTest, InvalidateSetWindowAndStatusRunBesideForwards) {
  in_threads(kNumThreads, [&](int i) {
    for (int round = 0; round < kNumRounds; ++round) {
      if (i == 0 && round % 20 == 19) prefetcher->invalidate();
      if (i == 1) {
        try {
          prefetcher->set_window(signature, 0, 16 * (round % 4), {}, backend, place(0, 2));
        } catch (const std::invalid_argument&) {  // not learned just now
        }
      }
      if (i == 2) prefetcher->for_each([](const Signature&, const SignatureState& one) { one.snapshot(); });
      forward_on(i + 1, signature, prefetcher);
    }
  });
  EXPECT_FALSE(outstanding());
  expect_forks_and_joins_to_alternate();
  EXPECT_FALSE(state().latched_off());
}

TEST_F(ConcurrencyTest, TwoCapturesAtOnceKeepTheirNodesApart) {
  in_threads(2, [&](int i) { forward_on(i + 1, {i, 1, "decode"}, prefetcher); });
  backend.take_verbs();
  backend.captures = {{1, 5}, {2, 6}};
  std::barrier both_open(2);
  in_threads(2, [&](int i) {
    forward_on(i + 1, {i, 1, "decode"}, prefetcher, true, [&] { both_open.arrive_and_wait(); });
  });
  backend.captures.clear();
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(backend.num_verbs("attach"), 4);
  EXPECT_EQ(backend.num_verbs("join"), 2) << "each joins its own";
  for (int i = 0; i < 2; ++i) {
    const SignatureState own = state_of({i, 1, "decode"}, *prefetcher);
    EXPECT_EQ(own.state(), State::kFrozen);
    EXPECT_EQ(own.reason(), "");
    EXPECT_EQ(own.num_launched(), 2);
  }
}

TEST_F(ConcurrencyTest, ACaptureAndAnEagerForwardOfOneDeviceLeaveEachOtherAlone) {
  in_threads(2, [&](int i) { forward_on(i + 1, {i, 1, "decode"}, prefetcher); });
  backend.take_verbs();
  backend.captures = {{1, 5}};
  std::barrier both_open(2);
  in_threads(2, [&](int i) {
    forward_on(i + 1, {i, 1, "decode"}, prefetcher, i == 0, [&] { both_open.arrive_and_wait(); });
  });
  backend.captures.clear();
  EXPECT_FALSE(outstanding());
  EXPECT_EQ(backend.num_verbs("attach"), 2);
  EXPECT_EQ(backend.num_verbs("fork"), 2);
  EXPECT_EQ(backend.num_verbs("join"), 3) << "two of the eager forward, one of the capture";
}

TEST_F(ConcurrencyTest, TwoPrefetchersShareADeviceAndLearnApart) {
  const auto other = std::make_shared<Prefetcher>(PrefetcherOptions{.budget_bytes = 16});
  in_threads(kNumThreads, [&](int i) {
    const auto& own = i % 2 == 0 ? prefetcher : other;
    for (int round = 0; round < kNumRounds; ++round) forward_on(i + 1, {i, 1, "decode"}, own);
  });
  EXPECT_FALSE(outstanding());
  expect_forks_and_joins_to_alternate();
  for (int i = 0; i < kNumThreads; ++i) {
    EXPECT_EQ(state_of({i, 1, "decode"}, *prefetcher).num_eager(), i % 2 == 0 ? kNumRounds : 0);
    EXPECT_EQ(state_of({i, 1, "decode"}, *other).num_eager(), i % 2 == 0 ? 0 : kNumRounds);
  }
  EXPECT_EQ(state_of({1, 1, "decode"}, *other).settings()[0].byte_limit, 16);
}

TEST_F(ConcurrencyTest, AForwardOfOnePrefetcherInsideAnothersIsIgnored) {
  const auto other = std::make_shared<Prefetcher>(PrefetcherOptions{});
  ASSERT_TRUE(begin());
  EXPECT_FALSE(begin_forward(2, other, signature, false));
  for (const auto& step : steps) collective(step.kind, step.weights);
  end_forward();
  end_forward();
  EXPECT_EQ(state().num_eager(), 1);
  EXPECT_EQ(state_of(signature, *other).num_eager(), 0);
}

TEST_F(ConcurrencyTest, HandlesMadeAndDestroyedByEightThreadsAreDistinct) {
  std::vector<std::vector<int64_t>> made(kNumThreads);
  in_threads(kNumThreads, [&](int i) {
    for (int round = 0; round < kNumRounds; ++round) {
      made[i].push_back(Registry::instance().create({}));
      EXPECT_NE(Registry::instance().get(made[i].back()), nullptr);
      Registry::instance().destroy(made[i].back());
    }
  });
  std::vector<int64_t> all;
  for (const auto& own : made) all.insert(all.end(), own.begin(), own.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST_F(ConcurrencyTest, ADestroyedPrefetcherLivesUntilItsForwardsEnd) {
  const int64_t handle = Registry::instance().create({});
  in_threads(1, [&](int) {
    forward_on(1, signature, Registry::instance().get(handle));
    auto own = Registry::instance().get(handle);
    const std::weak_ptr<Prefetcher> watched = own;
    ASSERT_TRUE(begin_forward(handle, std::move(own), signature, false));
    Registry::instance().destroy(handle);
    collective(steps[0].kind);
    EXPECT_FALSE(watched.expired());
    end_forward();
    EXPECT_TRUE(watched.expired());
  });
  EXPECT_FALSE(outstanding());
}

}  // namespace
}  // namespace l2pf
