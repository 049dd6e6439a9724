// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// The program's operator new counts what is in use, and can be told to fail.
namespace gpushm_testing {

[[nodiscard]] std::size_t heap_bytes_in_use() noexcept;
/// The `count`-th allocation from now on throws bad_alloc, once; 0: none does.
void fail_allocation(std::size_t count) noexcept;

}  // namespace gpushm_testing
