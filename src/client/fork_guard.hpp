// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace gpushm::detail {

/// How often this process image was forked since it started: differs between a parent and its
/// child.
[[nodiscard]] std::uint64_t fork_count() noexcept;

/// While it lives, a child that is forked off closes its copy of `fd`, so that the broker sees the
/// parent's death though the child lives on. Thread-safe.
class fork_closes {
 public:
  explicit fork_closes(int fd);
  fork_closes(const fork_closes&) = delete;
  fork_closes& operator=(const fork_closes&) = delete;
  ~fork_closes();

 private:
  int fd_;
};

/// Throws `errc::forked` when this process was forked off after `count` was taken.
void check_not_forked(std::uint64_t count, std::string_view operation, std::string_view object);

/// In a forked child, objects with threads and locks can neither be used nor destroyed: the copy in
/// `object` is kept for ever.
template <typename Object>
void keep_for_ever(std::shared_ptr<Object>& object) noexcept {
  static_cast<void>(new (std::nothrow) std::shared_ptr<Object>(std::move(object)));
}

}  // namespace gpushm::detail
