#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "../segment.h"

namespace l2pf {

// A thread that issues software prefetches, in the order they are posted. It lives as long as the process.
class PrefetchWorker {
 public:
  PrefetchWorker();

  // Returns a ticket; the segments' owners are held until the worker is done with them, and are let go by the next
  // thread that posts or waits: the last hold on a tensor may end in Python, where this thread has no business.
  int64_t post(std::vector<Segment> segments);
  void wait(int64_t ticket);
  // Cache lines prefetched so far.
  int64_t num_lines();

 private:
  struct Job {
    int64_t ticket;
    std::vector<Segment> segments;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Job> jobs_;
  std::vector<Segment> finished_;
  int64_t last_ticket_ = 0;
  int64_t last_done_ = 0;
  int64_t num_lines_ = 0;
};

}  // namespace l2pf
