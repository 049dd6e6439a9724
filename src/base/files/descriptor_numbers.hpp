// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace gpushm::base {

/// The open file limit of the shipped units. A table of this size is half a MiB of the kernel.
constexpr std::size_t usual_descriptor_numbers = 65'536;

/// Makes room for `count` numbers, up to the open file limit, in this thread's descriptor table.
///
/// Linux doubles a table that is too small. If threads, or processes (CLONE_FILES), share it, the
/// one that opens a descriptor then waits for all CPUs (synchronize_rcu): 8 to 26 ms each time,
/// from 64 numbers on. So call it before the table is shared; later, this call waits once. No
/// effect if the kernel refuses. Thread-safe.
void reserve_descriptor_numbers(std::size_t count = usual_descriptor_numbers) noexcept;

}  // namespace gpushm::base
