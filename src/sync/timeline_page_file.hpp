// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/files/guarded_fd.hpp"

namespace gpushm::sync {

// The files of timeline pages (timeline_page.hpp, docs/adr/0032): memfds, mode 0600.

/// The writable descriptor of a new page, which is zero and has no memory yet. Precondition:
/// `sync::is_timeline_page_size`. Throws too_many_descriptors, out_of_memory, system_error.
[[nodiscard]] base::guarded_fd make_timeline_page(std::uint64_t bytes);
/// Allocates the page's memory, which is charged to the control group of this process. Throws
/// out_of_memory, system_error.
void fill_timeline_page(int writable, std::uint64_t bytes);
/// Whether this is a page of that size.
[[nodiscard]] bool is_timeline_page(int fd, std::uint64_t bytes) noexcept;
/// Whether it is open for reading and writing, as only its signaler and the broker have it.
[[nodiscard]] bool is_open_for_writing(int fd) noexcept;

/// How `end_signals` treats words whose memory the signaler has not filled, or has freed.
enum class holes : std::uint8_t {
  fill,   ///< allocates them, in the control group of this process
  leave,  ///< they stay 0: allocates nothing
};
/// Bytes that `end_signals` writes; it allocates at most that many.
inline constexpr std::size_t ended_bytes = 8'192;
/// Whether some of them are not allocated.
[[nodiscard]] bool has_holes(int page) noexcept;
/// Ends all words, those in use first, and wakes waiters. The signaler may have punched holes: this
/// never stores through a mapping. Precondition: the signaler can no longer write. Takes about 20
/// µs. Logs failures.
void end_signals(int writable, holes holes) noexcept;

}  // namespace gpushm::sync
