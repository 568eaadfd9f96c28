#include "prefetch_worker.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <thread>

namespace l2pf {
namespace {

constexpr uintptr_t kLineBytes = 64;

// Every line the segment touches. Low temporal locality: the lines should stay in the outer caches, not push out the
// first-level working set.
int64_t prefetch_lines(const Segment& segment) {
  const uintptr_t first = segment.address & ~(kLineBytes - 1);
  for (uintptr_t line = first; line < segment.end(); line += kLineBytes)
    __builtin_prefetch(reinterpret_cast<const void*>(line), /*rw=*/0, /*locality=*/1);
  return static_cast<int64_t>((segment.end() - first + kLineBytes - 1) / kLineBytes);
}

// condition.wait(lock) of this C++ runtime is a newer symbol (GLIBCXX_3.4.30) than wheels for older systems may need.
template <typename Predicate>
void wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Predicate is_true) {
  while (!is_true()) pthread_cond_wait(condition.native_handle(), lock.mutex()->native_handle());
}

}  // namespace

PrefetchWorker::PrefetchWorker() {
  std::thread([this] { run(); }).detach();
}

int64_t PrefetchWorker::post(std::vector<Segment> segments) {
  std::vector<Segment> finished;  // destroyed after the lock is given back
  const std::lock_guard lock(mutex_);
  finished.swap(finished_);
  jobs_.push_back({++last_ticket_, std::move(segments)});
  wake_.notify_one();
  return last_ticket_;
}

void PrefetchWorker::wait(int64_t ticket) {
  std::vector<Segment> finished;
  std::unique_lock lock(mutex_);
  wait_until(done_, lock, [&] { return last_done_ >= ticket; });
  finished.swap(finished_);
}

int64_t PrefetchWorker::num_lines() {
  const std::lock_guard lock(mutex_);
  return num_lines_;
}

void PrefetchWorker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wait_until(wake_, lock, [&] { return !jobs_.empty(); });
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    int64_t num_lines = 0;
    for (const Segment& segment : job.segments) num_lines += prefetch_lines(segment);
    lock.lock();
    std::move(job.segments.begin(), job.segments.end(), std::back_inserter(finished_));
    num_lines_ += num_lines;
    last_done_ = job.ticket;
    done_.notify_all();
  }
}

}  // namespace l2pf
