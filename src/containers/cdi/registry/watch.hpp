// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/files/directory_watch.hpp"

namespace gpushm::cdi {

/// Detects possible changes of documents in some directories: written, renamed, removed; also when
/// the directories or their parents are created, removed or renamed later. Reports a document being
/// written when its writer closes it. Does not watch the targets of symbolic links.
///
/// Create it before the registry reads, and refresh the registry after each change.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class registry_watch {
 public:
  /// Throws `error` (too_many_descriptors, system_error) when the kernel's limit on watches is
  /// reached.
  explicit registry_watch(std::vector<std::string> directories);

  /// Readable when there may be a change: then call `changed`.
  [[nodiscard]] int fd() const noexcept { return watch_.fd(); }
  /// Whether there was a change since the last call. Does not block. Throws as the constructor.
  [[nodiscard]] bool changed();
  /// Blocks until a change, at most `timeout`; then collects further changes for at most 100 ms.
  /// Returns false on timeout. Throws as the constructor.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout);

 private:
  base::directory_watch watch_;
};

}  // namespace gpushm::cdi
