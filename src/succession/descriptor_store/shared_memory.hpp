// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <type_traits>

#include "base/files/syscall.hpp"

namespace gpushm::keeper {

/// Zeroed memory that this process shares with those that it forks. An object of `T` is valid if
/// all its bytes are 0, and needs no destructor.
///
/// Thread-safety: as T.
template <typename T>
class shared_memory {
 public:
  /// Throws `error`: system_error.
  explicit shared_memory(std::size_t count = 1) : count_(count) {
    static_assert(std::is_trivially_destructible_v<T>);
    // MAP_NORESERVE: pages that are not used cost nothing.
    void* const at = ::mmap(nullptr,
                            bytes(),
                            PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1,
                            0);
    base::checked("keep descriptors", {}, "mmap", [&] { return at == MAP_FAILED ? -1 : 0; });
    first_ = static_cast<T*>(at);
  }
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;
  ~shared_memory() { ::munmap(first_, bytes()); }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return first_[index]; }
  [[nodiscard]] T* operator->() const noexcept { return first_; }

 private:
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * sizeof(T); }

  std::size_t count_;
  T* first_ = nullptr;
};

}  // namespace gpushm::keeper
