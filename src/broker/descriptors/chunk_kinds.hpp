// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "gpushm/types.hpp"

namespace gpushm::broker_detail {

/// Throws `errc::wrong_descriptor_kind` unless `fd` is a valid chunk of `kind`: a sealed memfd of
/// `chunk_bytes` for the host; an open /dev/nvidiactl (character device 195:255) for GPUs, or with
/// `accept_fake` an unnamed tmpfs file, as created by the tests' fake driver. A broker can check
/// the kind of a GPU chunk, but not its size or contents.
void check_chunk(int fd, gpushm::backend kind, std::uint64_t chunk_bytes, bool accept_fake);
/// Throws `errc::size_mismatch` if host chunks of these sizes cannot be mapped back to back, as
/// each opener does: only the last chunk of a segment can end within a page. `has_last`: the last
/// of `chunk_bytes` is the segment's last.
void check_whole_pages(gpushm::backend kind,
                       std::span<const std::uint64_t> chunk_bytes,
                       bool has_last);
[[noreturn]] void throw_wrong_chunk_kind(gpushm::backend kind);

/// True if members have a reason to send `fd` and closing or inspecting it cannot block: a memory
/// file, a driver file, a pidfd, a pipe. For any other file, its server may decide how long that
/// takes. Does not block for any kind of file.
[[nodiscard]] bool is_of_member_kind(int fd) noexcept;
[[nodiscard]] bool is_pidfd(int fd) noexcept;
[[nodiscard]] bool is_pipe(int fd) noexcept;

}  // namespace gpushm::broker_detail
