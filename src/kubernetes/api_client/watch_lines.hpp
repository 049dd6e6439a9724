// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "kubernetes/api_client/reply.hpp"

namespace gpushm::api_client {

/// Splits the stream of a watch into events, one per line.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class watch_lines {
 public:
  watch_lines(const request_name& name,
              std::size_t max_bytes,
              const std::function<void(const watch_event&)>& on_event)
      : what_(name), max_bytes_(max_bytes), on_event_(on_event) {}

  /// Returns whether a line was completed. Throws `api_error` for an error event, `error`
  /// (protocol_error, message_too_large), and what the handler throws.
  bool take(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  request_name what_;
  std::size_t max_bytes_;
  const std::function<void(const watch_event&)>& on_event_;
  std::string rest_;
};

}  // namespace gpushm::api_client
