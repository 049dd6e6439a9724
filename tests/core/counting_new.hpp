// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Replaces operator new: counts bytes in use and can be made to fail.
namespace gpushm_testing {

[[nodiscard]] std::size_t heap_bytes_in_use() noexcept;
/// The `count`-th allocation from now on throws bad_alloc, once; 0: none does.
void fail_allocation(std::size_t count) noexcept;
/// That allocation and all later ones fail.
void fail_allocations_from(std::size_t count) noexcept;
/// If `alone`, only allocations of the calling thread count and fail from now on; else those of all
/// threads.
void fail_in_this_thread(bool alone) noexcept;
/// True if one has failed since the last of these calls.
[[nodiscard]] bool an_allocation_failed() noexcept;

/// No allocation fails, or counts towards one that does, while it exists.
class no_failures {
 public:
  no_failures() noexcept;
  no_failures(const no_failures&) = delete;
  no_failures& operator=(const no_failures&) = delete;
  ~no_failures();

 private:
  std::size_t left_;
};

}  // namespace gpushm_testing
