// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "broker/session/connection.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::broker_detail {

/// The broker's log of member activity. Limited in lines per second, so that members cannot fill
/// it.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class member_log {
 public:
  explicit member_log(std::string domain) : domain_(std::move(domain)) {}

  /// Throws std::bad_alloc.
  void write(std::string_view text);
  /// Throws std::bad_alloc.
  void dropped(const connection& connection, std::string_view why);

  /// Runs `job` and logs what it throws: one member's failure, or a lack of memory, must not end
  /// the loop.
  template <typename Job>
  void guarded(Job&& job) noexcept {
    try {
      job();
    } catch (const std::bad_alloc&) {
      limit_.count_suppressed();
    } catch (const std::exception& why) {
      try {
        write(why.what());
      } catch (const std::bad_alloc&) {
        limit_.count_suppressed();
      }
    }
  }

 private:
  std::string domain_;
  succession::line_limit limit_;
};

}  // namespace gpushm::broker_detail
