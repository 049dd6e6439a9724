// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/files/directory_watch.hpp"

namespace gpushm::agent {

/// Detects that the text of the settings file has changed: written, replaced, or reached through
/// symbolic links that were replaced, as in a mounted ConfigMap. Thread-safety: distinct objects:
/// safe; shared objects: unsafe.
class settings_watch {
 public:
  /// `text`: the text that the current settings were read from. An empty path: nothing is watched.
  /// If the kernel does not provide a watch, this is logged and nothing is watched. Throws only
  /// std::bad_alloc.
  settings_watch(std::string path, std::string text);

  /// Readable when the file may have changed; -1: not watched.
  [[nodiscard]] int fd() const noexcept { return watch_ ? watch_->fd() : -1; }
  /// Upper bound of the time until `changed` must be called.
  [[nodiscard]] std::chrono::milliseconds next(std::chrono::milliseconds max) const;
  /// Whether the text differs from the last time this returned true. Does not block; a file that
  /// does not exist, or is being written, is read again later.
  [[nodiscard]] bool changed();

 private:
  void stop_watching(const std::exception& why);

  std::string path_;
  std::string text_;
  std::optional<base::directory_watch> watch_;
  std::optional<std::chrono::steady_clock::time_point>
      check_at_;  // when the file is expected to be complete
};

}  // namespace gpushm::agent
