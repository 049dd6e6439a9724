// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace gpushm::cli {

/// One line on standard error that shows the progress, drawn only on a terminal, five times in a
/// second; the destructor clears it.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class live_line {
 public:
  live_line();
  live_line(const live_line&) = delete;
  live_line& operator=(const live_line&) = delete;
  ~live_line() { clear(); }

  /// Draws what `text()` returns if it is time to; shortened to the terminal's width.
  template <typename Text>
  void update(Text&& text) {
    if (terminal_ && clock::now() >= next_) {
      draw(text());
    }
  }
  void clear();

 private:
  using clock = std::chrono::steady_clock;
  void draw(const std::string& text);

  bool terminal_;
  clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace gpushm::cli
