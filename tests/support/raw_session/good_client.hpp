// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/raw_session/forked_process.hpp"

namespace gpushm_testing {

/// Service that a good client received while it was measured.
struct good_figures {
  std::uint64_t replies = 0;          ///< opens that returned the segment
  std::uint64_t failures = 0;         ///< opens with any other reply
  bool dropped = false;               ///< the broker disconnected it
  std::chrono::nanoseconds worst{0};  ///< longest wait, including one in flight
  std::chrono::nanoseconds p50{0};
  std::chrono::nanoseconds p99{0};
};

struct good_client_options {
  forked_options process = {};
  /// Pause between a release and the next open.
  std::chrono::microseconds pace{1'500};
};

/// A process that publishes the segment "good/segment" of one page and then opens and releases it,
/// one request at a time, until destruction. Move-only.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class good_client {
 public:
  /// Returns after the first reply. Throws `harness_error`.
  explicit good_client(const std::string& socket_path, const good_client_options& options = {});
  good_client(good_client&&) noexcept;
  good_client& operator=(good_client&&) = delete;
  ~good_client();

  /// Blocks for `window` and returns what happened in it.
  [[nodiscard]] good_figures measure(std::chrono::milliseconds window);
  /// Starts a window that `end` closes; for tests that act in the meantime.
  void begin();
  [[nodiscard]] good_figures end();

 private:
  struct record;
  struct unmap {
    void operator()(record* mapped) const noexcept;
  };
  static std::unique_ptr<record, unmap> make_record();

  std::unique_ptr<record, unmap> record_;
  forked_process process_;
};

}  // namespace gpushm_testing
