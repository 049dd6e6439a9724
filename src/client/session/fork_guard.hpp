// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "base/files/fork_guard.hpp"

namespace gpushm::client_detail {

using base::is_forked_child_of;

/// Stored by objects, to identify the process in which they were created.
[[nodiscard]] inline std::uint64_t fork_count() noexcept {
  return base::fork_generation();
}

[[noreturn]] void throw_forked(std::string_view operation, std::string_view object);

/// Throws `errc::forked` if this process was forked after `created_in` was read from `fork_count`.
/// Call it before locking anything: in a child, any lock may be locked forever.
inline void check_not_forked(std::uint64_t created_in,
                             std::string_view operation,
                             std::string_view object) {
  if (is_forked_child_of(created_in)) {
    throw_forked(operation, object);
  }
}

/// In a forked child, objects with threads and locks can be neither used nor destroyed: the copy in
/// `object` is leaked.
template <typename Object>
void leak(std::shared_ptr<Object>& object) noexcept {
  static_cast<void>(new (std::nothrow) std::shared_ptr<Object>(std::move(object)));
}

}  // namespace gpushm::client_detail
