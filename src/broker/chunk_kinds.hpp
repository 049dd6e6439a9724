// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpushm/types.hpp"

namespace gpushm::broker_detail {

/// Throws `errc::wrong_descriptor_kind` unless `fd` is what `kind` hands out as a chunk: a sealed
/// memfd of `chunk_bytes` for the host; an open /dev/nvidiactl (character device 195:255) for GPUs,
/// or with `accept_fake` an unnamed tmpfs file, as the fake driver of the tests makes. A broker can
/// check the kind of a GPU's chunk, never its size or contents.
void check_chunk(int fd, gpushm::backend kind, std::uint64_t chunk_bytes, bool accept_fake);
[[noreturn]] void throw_wrong_chunk_kind(gpushm::backend kind);

/// Whether closing and looking at `fd` can only take the kernel's own time, and members have a
/// reason to send it: a file of memory, the driver's, a pidfd, a pipe. The server of any other file
/// may decide how long that takes. Does not block, whatever it is.
[[nodiscard]] bool is_of_member_kind(int fd) noexcept;
[[nodiscard]] bool is_pidfd(int fd) noexcept;
[[nodiscard]] bool is_pipe(int fd) noexcept;

}  // namespace gpushm::broker_detail
