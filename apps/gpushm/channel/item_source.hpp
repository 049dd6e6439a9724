// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "apps/gpushm/channel/item_header.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::cli {

/// The contents of items: pseudo-random bytes, or those of a file.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class item_source {
 public:
  /// `path`: a file, "-" for standard input, empty for a pattern. Throws `error`:
  /// permission_denied, system_error, invalid_argument (`loop` and not a regular file).
  item_source(std::string path, bool loop, std::uint64_t seed);

  /// Fills a slot, of a file with what is left of it, and describes that; false: there is nothing
  /// left, or `stop` was requested. Blocks until the slot is full or the file has ended. Throws
  /// `error`: system_error.
  [[nodiscard]] bool fill(std::span<std::byte> slot,
                          item_header& header,
                          const app::stop_signal& stop);

 private:
  [[nodiscard]] std::size_t read(std::span<std::byte> slot, const app::stop_signal& stop);

  std::string path_;  ///< empty: a pattern
  bool loop_;
  std::uint64_t seed_;
  base::unique_fd file_;
};

}  // namespace gpushm::cli
