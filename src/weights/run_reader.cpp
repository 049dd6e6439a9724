// SPDX-License-Identifier: Apache-2.0
#include "weights/run_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "gpushm/error.hpp"
#include "weights/copy_lane.hpp"

namespace gpushm::weights {

namespace {

/// Bytes between two runs that are read with them: less costly than another read.
constexpr std::uint64_t max_gap_bytes = 32U << 10U;

}  // namespace

const std::byte* run_reader::read(const piece& what,
                                  std::uint64_t first,
                                  std::uint64_t bytes,
                                  std::byte* to) {
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
  const strided_source& source = plan_.strided[what.strided];
  std::byte* into = to;
  first += what.first_byte;
  while (bytes != 0) {
    const std::uint64_t run = first / source.run_bytes;
    const std::uint64_t in_run = first % source.run_bytes;
    const std::uint64_t begin = source.offset_of(run) + in_run;
    // One run, or a part of it; then whole runs, of which the last may end with what is wanted.
    const std::uint64_t of_first = std::min({source.run_bytes - in_run, bytes, step_bytes});
    std::uint64_t end = begin + of_first;
    std::uint64_t wanted = of_first;
    for (std::uint64_t next = run + 1; wanted != bytes && in_run + of_first == source.run_bytes;
         ++next) {
      const std::uint64_t next_begin = source.offset_of(next);
      const std::uint64_t next_end = next_begin + std::min(source.run_bytes, bytes - wanted);
      if (next_begin - end > max_gap_bytes || next_end - begin > step_bytes) {
        break;
      }
      wanted += next_end - next_begin;
      end = next_end;
    }
    const std::byte* const got =
        reader_.read({what.file, what.file_offset + begin, end - begin}, buffer_.get());
    std::memcpy(into, got, of_first);
    std::uint64_t copied = of_first;
    for (std::uint64_t next = run + 1; copied != wanted; ++next) {
      const std::uint64_t count = std::min(source.run_bytes, wanted - copied);
      std::memcpy(into + copied, got + (source.offset_of(next) - begin), count);
      copied += count;
    }
    into += wanted;
    first += wanted;
    bytes -= wanted;
  }
  return to;
}

}  // namespace gpushm::weights
