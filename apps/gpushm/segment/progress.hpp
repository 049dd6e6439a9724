// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpushm::cli {

/// A progress bar on standard error, drawn only on a terminal and only after one second; the
/// destructor clears the line.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class progress {
 public:
  progress(std::string activity, std::uint64_t total_bytes);
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress();

  void update(std::uint64_t done_bytes);

 private:
  std::string what_;
  std::uint64_t total_bytes_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
  bool terminal_;
  bool drawn_ = false;
};

/// The line for `done_bytes` of `total_bytes` after `seconds`, at most 79 columns.
[[nodiscard]] std::string progress_line(const std::string& activity,
                                        std::uint64_t done_bytes,
                                        std::uint64_t total_bytes,
                                        double seconds);

}  // namespace gpushm::cli
