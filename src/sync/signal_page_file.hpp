// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/guarded_fd.hpp"

namespace gpushm::sync {

// The files of pages of timelines (signal_page.hpp, docs/adr/0032): memfds, mode 0600.

/// The writable descriptor of a new page, which is zero. Precondition: `sync::is_signal_page_size`.
/// Throws too_many_descriptors, out_of_memory, system_error.
[[nodiscard]] base::guarded_fd make_signal_page(std::uint64_t bytes);
/// Whether this is a page of that size.
[[nodiscard]] bool is_signal_page(int fd, std::uint64_t bytes) noexcept;
/// Whether it is open for reading and writing, as only its signaler and the broker have it.
[[nodiscard]] bool is_open_for_writing(int fd) noexcept;

/// Ends all words, those in use first, and wakes waiters. The signaler may have punched holes: this
/// never stores through a mapping. Precondition: the signaler can no longer write. About 20 µs.
/// What fails is logged.
void end_signals(int writable) noexcept;

}  // namespace gpushm::sync
