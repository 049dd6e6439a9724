// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "testing/raw_session/forked_process.hpp"

namespace gpushm_testing {

/// What a good client met while it was measured.
struct good_figures {
  std::uint64_t answers = 0;          ///< opens that were answered with the segment
  std::uint64_t failures = 0;         ///< opens that were answered with anything else
  bool dropped = false;               ///< the broker hung up
  std::chrono::nanoseconds worst{0};  ///< longest wait, one that is not over included
  std::chrono::nanoseconds p50{0};
  std::chrono::nanoseconds p99{0};
};

struct good_client_options {
  forked_options process = {};
  /// Pause between a release and the next open.
  std::chrono::microseconds pace{1'500};
};

/// A process that publishes the segment "good/segment" of one page and then opens and releases it,
/// one request at a time, until the object is destroyed. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class good_client {
 public:
  /// Returns after its first answer. Throws `harness_error`.
  explicit good_client(const std::string& socket_path, const good_client_options& options = {});
  good_client(good_client&&) noexcept;
  good_client& operator=(good_client&&) = delete;
  ~good_client();

  /// Blocks for `window` and returns what happened in it.
  [[nodiscard]] good_figures measure(std::chrono::milliseconds window);
  /// Starts a window that `end` closes; for tests that act in between.
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
