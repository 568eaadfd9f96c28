#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../backend.h"
#include "table_layout.h"

namespace l2pf {

// What a calibration holds for, with the library's version: another GPU or driver needs its own.
struct CalibrationKey {
  std::string gpu;
  int driver = 0;  // as cudaDriverGetVersion counts, 13000 for 13.0
};

// What was measured on one GPU. Times in microseconds, rates in GB/s.
struct Calibration {
  CalibrationKey key;
  int64_t l2_bytes = 0;
  int64_t window_bytes = 0;    // size of the reads below
  int64_t hot_knee_bytes = 0;  // the largest read that L2 still serves
  double dram_read_gbps = 0;
  double cold_us = 0;                               // a full read of window_bytes from DRAM
  double hot_us = 0;                                // the same, read just before
  std::map<Form, double> after_us;                  // the same, prefetched by a form just before
  std::map<Form, std::map<int, double>> fill_gbps;  // by number of CTAs
  std::map<Form, double> collective_slowdown;       // a collective's latency beside a prefetch / alone
  std::vector<int64_t> partition_of_sm;             // empty: L2 is in one piece

  // The choice that follows.
  Form form = Form::kLoad;
  int num_ctas = 0;
  int piece_bytes = 16384;
  int start_delay_ns = kDefaultStartDelayNs;

  double chosen_fill_gbps() const { return fill_gbps.at(form).at(num_ctas); }
};

// Runs the probes on streams of its own; takes about a second, synchronises, allocates four times L2 and frees it.
// Throws BackendError.
Calibration calibrate(DeviceIndex device);

CalibrationKey calibration_key(DeviceIndex device);

std::string to_json(const CalibrationKey& key, const std::string& library_version);
std::string to_json(const Calibration& calibration, const std::string& library_version);

}  // namespace l2pf
