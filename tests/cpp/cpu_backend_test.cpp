#include "cpu/cpu_backend.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "forward.h"

#ifdef __SANITIZE_THREAD__
// The test of a process fork starts a thread in the child.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace l2pf {
namespace {

constexpr int64_t kLineBytes = 64;

class CpuBackendTest : public ::testing::Test {
 protected:
  struct alignas(kLineBytes) Line {
    char bytes[kLineBytes];
  };

  CpuBackend& backend = CpuBackend::instance();
  const Place place{};
  std::vector<Line> memory = std::vector<Line>(1024);

  Segment segment(int64_t offset, int64_t num_bytes, std::shared_ptr<const void> owner = nullptr) {
    return {reinterpret_cast<uintptr_t>(memory.data()) + static_cast<uintptr_t>(offset), num_bytes, std::move(owner)};
  }
  int64_t lines_of(const Prefetch& prefetch) {
    const int64_t before = backend.num_lines();
    backend.fork(prefetch, place);
    backend.join(place);
    return backend.num_lines() - before;
  }
  int64_t lines_of(std::vector<Segment> segments) { return lines_of({nullptr, 0, std::move(segments), Form::kAuto}); }

  std::shared_ptr<Table> table_of(std::vector<Segment> segments, int64_t byte_limit) {
    auto plan = std::make_shared<Plan>();
    int64_t num_bytes = 0;
    for (const auto& one : segments) num_bytes += one.num_bytes;
    plan->windows.push_back({0, CollectiveKind::kAllReduce, std::move(segments), num_bytes});
    const std::vector<WindowSetting> settings{{byte_limit, Form::kAuto}};
    return backend.make_table(plan, settings, place);
  }
};

TEST_F(CpuBackendTest, PrefetchesEveryLineOfEverySegment) {
  EXPECT_EQ(lines_of({segment(0, 64)}), 1);
  EXPECT_EQ(lines_of({segment(0, 1024), segment(4096, 640)}), 16 + 10);
  EXPECT_EQ(lines_of({segment(0, 16)}), 1);
}

TEST_F(CpuBackendTest, ASegmentThatStraddlesLinesBringsBothEnds) {
  EXPECT_EQ(lines_of({segment(16, 64)}), 2);
  EXPECT_EQ(lines_of({segment(48, 128)}), 3);
  EXPECT_EQ(lines_of({segment(16, 48)}), 1);
}

// The last hold on a tensor may end in Python; the worker, which Python does not know, must never be where that
// happens.
TEST_F(CpuBackendTest, AnOwnerIsLetGoByAThreadThatPostsOrWaits) {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  const auto owner = [&] {
    return std::shared_ptr<const void>(memory.data(), [&](const void*) {
      const std::lock_guard lock(mutex);
      threads.push_back(std::this_thread::get_id());
    });
  };
  for (int i = 0; i < 100; ++i) backend.fork({nullptr, 0, {segment(0, 1024, owner())}, Form::kAuto}, place);
  backend.join(place);
  EXPECT_EQ(threads, std::vector<std::thread::id>(100, std::this_thread::get_id()));
}

TEST_F(CpuBackendTest, NothingToPrefetchIsNothing) { EXPECT_EQ(lines_of(std::vector<Segment>{}), 0); }

TEST_F(CpuBackendTest, AWindowIsCutToItsLimitInReadingOrder) {
  EXPECT_EQ(lines_of({table_of({segment(0, 640), segment(4096, 640)}, 1280), 0, {}, Form::kAuto}), 20);
  EXPECT_EQ(lines_of({table_of({segment(0, 640), segment(4096, 640)}, 768), 0, {}, Form::kAuto}), 12);
}

TEST_F(CpuBackendTest, APatchChangesTheBytes) {
  const auto table = table_of({segment(0, 640)}, 640);
  const Prefetch prefetch{table, 0, {}, Form::kAuto};
  EXPECT_EQ(lines_of(prefetch), 10);
  backend.patch_table(*table, 0, {128, Form::kAuto}, place);
  EXPECT_EQ(lines_of(prefetch), 2);
  backend.patch_table(*table, 0, {0, Form::kAuto}, place);
  EXPECT_EQ(lines_of(prefetch), 0) << "switched off";
  backend.patch_table(*table, 0, {640, Form::kAuto}, place);
  EXPECT_EQ(lines_of(prefetch), 10);
}

TEST_F(CpuBackendTest, JoinWaitsForTheForkAndForEveryOneBeforeIt) {
  const int64_t before = backend.num_lines();
  for (int i = 0; i < 100; ++i) backend.fork({nullptr, 0, {segment(0, 64 * 1024)}, Form::kAuto}, place);
  backend.join(place);
  EXPECT_EQ(backend.num_lines() - before, 100 * 1024);
}

TEST_F(CpuBackendTest, JoinWithoutAForkReturns) {
  backend.join(place);
  backend.join(place);
}

TEST_F(CpuBackendTest, PrefetchesRunInTheOrderOfTheirForks) {
  std::mutex mutex;
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) {
    // The worker's hold on a segment ends right after its prefetch: the ends of the owners show the order.
    std::shared_ptr<const void> owner(&order, [&, i](const void*) {
      const std::lock_guard lock(mutex);
      order.push_back(i);
    });
    backend.fork({nullptr, 0, {segment(0, 64, std::move(owner))}, Form::kAuto}, place);
  }
  backend.join(place);
  std::vector<int> expected(50);
  for (int i = 0; i < 50; ++i) expected[i] = i;
  EXPECT_EQ(order, expected);
}

TEST_F(CpuBackendTest, WeightsAreHeldUntilTheJoinAndNoLonger) {
  auto owner = std::make_shared<const int>(0);
  const std::weak_ptr<const int> watch = owner;
  backend.fork({nullptr, 0, {segment(0, 64, std::move(owner))}, Form::kAuto}, place);
  backend.join(place);
  EXPECT_TRUE(watch.expired());
}

TEST_F(CpuBackendTest, ReadsOnlyNeverWrites) {
  for (auto& line : memory) std::fill(std::begin(line.bytes), std::end(line.bytes), 7);
  lines_of({segment(0, 64 * 1024)});
  for (const auto& line : memory)
    for (const char byte : line.bytes) ASSERT_EQ(byte, 7);
}

TEST_F(CpuBackendTest, AForkedProcessPrefetchesToo) {
  EXPECT_EQ(lines_of({segment(0, 64)}), 1) << "the parent's worker runs before the process forks";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that waits for its parent's thread would wait forever
    backend.join(place);
    _exit(lines_of({segment(0, 640)}) == 10 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(lines_of({segment(0, 64)}), 1) << "and the parent goes on";
}

TEST_F(CpuBackendTest, TheAutoBudgetIsAShareOfTheCache) {
  const int64_t budget = backend.auto_budget_bytes(kCpu, 0);
  EXPECT_GT(budget, 0);
  EXPECT_LT(budget, backend.device_info(kCpu).l2_bytes);
}

TEST_F(CpuBackendTest, NothingIsCaptured) {
  EXPECT_EQ(backend.capture_id(place), 0u);
  EXPECT_THROW(backend.mark(place), BackendError);
  EXPECT_THROW(backend.attach({}, Placement::kAuto, place), BackendError);
}

TEST_F(CpuBackendTest, ForkJoinAndPatchFromSeveralThreads) {
  const auto table = table_of({segment(0, 640)}, 640);
  const auto work = [&] {
    for (int i = 0; i < 500; ++i) {
      backend.fork({table, 0, {}, Form::kAuto}, place);
      backend.patch_table(*table, 0, {64 * (1 + i % 10), Form::kAuto}, place);
      backend.join(place);
    }
  };
  std::thread other(work);
  work();
  other.join();
}

TEST_F(CpuBackendTest, AWholeForwardPrefetchesWhatItLearned) {
  const auto prefetcher = std::make_shared<Prefetcher>(PrefetcherOptions{.budget_bytes = 1 << 20});
  const auto forward = [&] {
    ASSERT_TRUE(begin_forward(1, prefetcher, {1, 1, "decode"}, false));
    for (int64_t i = 0; i < 3; ++i) {
      current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, place);
      current_forward()->collective_end(backend, place);
      current_forward()->record_weight(segment(4096 * i, 640), kCpu);
    }
    end_forward();
  };
  const int64_t before = backend.num_lines();
  forward();
  EXPECT_EQ(backend.num_lines(), before) << "the first forward learns";
  forward();
  EXPECT_EQ(backend.num_lines() - before, 30);
  EXPECT_FALSE(Outstanding::of(backend).any(kCpu));
}

}  // namespace
}  // namespace l2pf
