// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/guarded_fd.hpp"

namespace gpushm::broker_detail {

// Pages of timelines (sync/signal_page.hpp, docs/adr/0032): memfds of this process, mode 0600. Who
// signals has the writable descriptor, everybody else one that is open for reading only.

/// The writable descriptor of a new page, which is zero. Precondition: `sync::is_signal_page_size`.
/// Throws too_many_descriptors, out_of_memory, system_error.
[[nodiscard]] base::guarded_fd make_signal_page(std::uint64_t bytes);
/// A descriptor of the same page that is open for reading only. Throws as above.
[[nodiscard]] base::guarded_fd readable_signal_page(int writable);
/// Whether this is the writable descriptor of a page of that size that a broker of this user has
/// made.
[[nodiscard]] bool is_signal_page(int fd, std::uint64_t bytes) noexcept;

/// Ends all words, those in use first, and wakes waiters. The signaler may have punched holes: this
/// never stores through a mapping. Precondition: the signaler can no longer write. About 20 µs.
/// What fails is logged.
void end_signals(int writable) noexcept;

}  // namespace gpushm::broker_detail
