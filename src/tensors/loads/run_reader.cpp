// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/run_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "gpushm/error.hpp"
#include "tensors/loads/copy_lane.hpp"

namespace gpushm::tensors {

namespace {

/// Bytes between two runs that are read with them, because they cost less than another read (ADR 34
/// has the figures): of the page cache a system call, of a disk its latency.
constexpr std::uint64_t max_cached_gap = 4U << 10U;
constexpr std::uint64_t max_direct_gap = 64U << 10U;

}  // namespace

const std::byte* run_reader::read(const piece& piece,
                                  std::uint64_t first,
                                  std::uint64_t bytes,
                                  std::byte* target) {
  if (!buffer_) {
    buffer_ = make_block_buffer(step_bytes + 2 * copy_lane::block_bytes);
    if (!buffer_) {
      throw error(errc::out_of_memory,
                  "load",
                  {},
                  "no memory for " + std::to_string(step_bytes) + " bytes of a file",
                  "use fewer threads, or free memory");
    }
  }
  const strided_source& source = plan_.strided[piece.strided];
  const std::uint64_t max_gap = reader_.is_direct(piece.file) ? max_direct_gap : max_cached_gap;
  std::byte* into = target;
  first += piece.first_byte;
  while (bytes != 0) {
    const strided_source::run head = source.run_at(first);
    const std::uint64_t begin = head.offset;
    std::uint64_t wanted = std::min({head.bytes, bytes, step_bytes});
    std::uint64_t end = begin + wanted;
    while (wanted != bytes) {
      const strided_source::run next = source.run_at(first + wanted);
      const std::uint64_t next_end = next.offset + std::min(next.bytes, bytes - wanted);
      // Ranges have the order of the slice: the next run may be before this one.
      if (next.offset < end || next.offset - end > max_gap || next_end - begin > step_bytes) {
        break;
      }
      wanted += next_end - next.offset;
      end = next_end;
    }
    const std::byte* const got =
        reader_.read({piece.file, piece.file_offset + begin, end - begin}, buffer_.get());
    for (std::uint64_t copied = 0; copied != wanted;) {
      const strided_source::run next = source.run_at(first + copied);
      const std::uint64_t count = std::min(next.bytes, wanted - copied);
      std::memcpy(into + copied, got + (next.offset - begin), count);
      copied += count;
    }
    into += wanted;
    first += wanted;
    bytes -= wanted;
  }
  return target;
}

}  // namespace gpushm::tensors
