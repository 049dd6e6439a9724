// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/directory_watch.hpp"

namespace gpushm::cdi {

/// Notices that documents of some directories may have changed: written, renamed, removed; also in
/// directories that are made, removed or renamed later, with what leads to them. A document that is
/// still being written counts once its writer closes it. What a symbolic link points to is not
/// watched.
///
/// Make it before the registry reads, and refresh the registry after each change.
///
/// Distinct objects: safe. Shared objects: unsafe.
class registry_watch {
 public:
  /// Throws `error` (too_many_descriptors, system_error) when the kernel gives no more watches.
  explicit registry_watch(std::vector<std::string> directories);

  /// Readable when there may be a change: then call `changed`.
  [[nodiscard]] int fd() const noexcept { return watch_.fd(); }
  /// Whether there was a change since the last call. Does not block. Throws as the constructor.
  [[nodiscard]] bool changed();
  /// Blocks until there was a change, at most `timeout`; then until what changes together has
  /// come, at most 100 ms more. False when time ran out. Throws as the constructor.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout);

 private:
  base::directory_watch watch_;
};

}  // namespace gpushm::cdi
