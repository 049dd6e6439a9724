// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "gpushm/segment.hpp"
#include "weights/tensor.hpp"

/// Tensors in a segment (docs/tensors.md): first the tensors, then a table, then a seal. The
/// segment's metadata says where the table is; the seal, which is written last, that all of them
/// are complete. So a segment can be published while it is filled: readers look for the seal.
namespace gpushm::weights {

/// Distinguishes what is written into a segment from what was in its memory before.
using slab_id = std::array<std::uint8_t, 16>;

/// The metadata of a segment with tensors.
struct slab_info {
  slab_id id{};
  std::string fingerprint;  ///< of the files; empty: not from files
  std::uint64_t table_offset = 0;
  std::uint64_t table_bytes = 0;
  friend bool operator==(const slab_info&, const slab_info&) = default;
};
inline constexpr std::uint64_t seal_bytes = 64;
/// Upper bound, because readers keep it in memory.
inline constexpr std::uint64_t max_table_bytes = 1U << 30U;

/// For new contents: with a random id.
[[nodiscard]] slab_info new_slab(std::string fingerprint,
                                 std::uint64_t table_offset,
                                 std::uint64_t table_bytes);
[[nodiscard]] std::uint64_t slab_bytes(const slab_info& what);
[[nodiscard]] std::string to_metadata(const slab_info& what);
/// What a segment's metadata says; nothing if it is not one with tensors. Throws `error`
/// (protocol_error) if it says what cannot be.
[[nodiscard]] std::optional<slab_info> info_of(const segment& what);

/// Writes table and seal. Precondition: all bytes of the tensors have been written, and no stream
/// writes any more. Blocks while they are copied.
void seal(segment& what, const slab_info& info, std::string_view table);
/// Whether a segment is complete: its seal is there. Does not read the table, which `table_of`
/// checks. Blocks while the seal is copied.
[[nodiscard]] bool is_sealed(const segment& what, const slab_info& info);
/// The table of a segment that is sealed; nothing if it is not (yet). Blocks while it is copied.
/// Throws `error`: protocol_error (it is damaged, or hostile).
[[nodiscard]] std::optional<std::string> table_of(const segment& what, const slab_info& info);
/// Reads a table, and checks it against its segment. Throws `error`: protocol_error.
[[nodiscard]] tensors checked_table(std::string_view name,
                                    std::string_view table,
                                    const slab_info& info);

}  // namespace gpushm::weights
