// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/directory_watch.hpp"

namespace gpushm::agent {

/// Notices that the settings' file has another text: written, replaced, or led to by links that are
/// replaced, as in a mounted ConfigMap.
///
/// Distinct objects: safe. Shared objects: unsafe.
class config_watch {
 public:
  /// `text`: what the settings in effect were read from. An empty path: nothing is watched. Where
  /// the kernel gives no watch that is logged, and nothing is watched. Throws only for memory.
  config_watch(std::string path, std::string text);

  /// Readable when there may be a change; -1: never.
  [[nodiscard]] int fd() const noexcept { return watch_ ? watch_->fd() : -1; }
  /// How long to wait at most before `changed` is called.
  [[nodiscard]] std::chrono::milliseconds next(std::chrono::milliseconds most) const;
  /// Whether the file has another text than when this was true last. Does not block; a file that is
  /// not there, or is being written, is looked at again later.
  [[nodiscard]] bool changed();

 private:
  void stop_watching(const std::exception& why);

  std::string path_;
  std::string text_;
  std::optional<base::directory_watch> watch_;
  std::optional<std::chrono::steady_clock::time_point> look_at_;  // when it has settled
};

}  // namespace gpushm::agent
