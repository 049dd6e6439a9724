// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/segment.hpp"
#include "tensors/files/tensor_table.hpp"

/// Tensors in a segment (docs/tensors.md): first the tensors, then a table, a seal, and the files
/// that they were read from. The segment's metadata has the place of the table. The seal, whose
/// last word is stored last, shows that everything before it and the files are complete. So a
/// segment can be published while it is filled: readers look for the seal.
namespace gpushm::tensors {

/// Distinguishes what is written into a segment from what was in its memory before.
using slab_id = std::array<std::uint8_t, 16>;

/// The metadata of a segment with tensors.
struct slab_info {
  slab_id id{};
  std::string fingerprint;  ///< of the files; empty: not from files
  std::uint64_t table_offset = 0;
  std::uint64_t table_bytes = 0;
  std::uint64_t sources_bytes = 0;  ///< 0: not from files
  friend bool operator==(const slab_info&, const slab_info&) = default;
};
inline constexpr std::uint64_t seal_bytes = 64;

/// A hash of the stamps of the files that a model was read from.
using model_identity = std::array<std::uint8_t, 16>;
[[nodiscard]] model_identity identity_from(std::string_view stamps);
/// Which files have the contents of a segment.
struct model_sources {
  /// The names of the files of an index, each before a newline; empty: not of one index.
  std::string names;
  std::vector<model_identity> known;  ///< at most `max_identities`
};
inline constexpr std::size_t max_identities = 16;
/// Longer ones are not stored.
inline constexpr std::size_t max_names_bytes = 1U << 20U;
inline constexpr std::uint64_t identities_bytes = max_identities * sizeof(model_identity);
[[nodiscard]] inline std::uint64_t sources_bytes_for(const model_sources& sources) {
  return identities_bytes + sources.names.size();
}

/// For new contents: with a random id.
[[nodiscard]] slab_info new_slab(std::string fingerprint,
                                 std::uint64_t table_offset,
                                 std::uint64_t table_bytes,
                                 std::uint64_t sources_bytes = 0);
[[nodiscard]] std::uint64_t slab_bytes(const slab_info& slab);
[[nodiscard]] std::string to_metadata(const slab_info& slab);
/// Reads a segment's metadata; nullopt if it has no tensors. Throws `error`: protocol_error (its
/// values are impossible), unsupported_version (of another version).
[[nodiscard]] std::optional<slab_info> info_of(const segment& segment);

/// Writes the table, `sources` if there is room for them in `info`, and the seal. Precondition: all
/// bytes of the tensors have been written, and no stream still writes. Blocks while they are
/// copied.
void seal(segment& segment,
          const slab_info& info,
          const table_words& table,
          const model_sources& sources = {});
/// Whether a segment is complete, that is sealed. What the loader wrote before it is visible to
/// this thread then. Does not read the table, which `table_of` checks. Blocks while the seal is
/// copied.
[[nodiscard]] bool is_sealed(const segment& segment, const slab_info& info);
/// The version of the contents of a segment: 1 of those that were loaded first, and higher with
/// each set of contents that is written into the same memory; 0: it is not sealed (yet). What was
/// written before that version is visible to this thread then. Of a hostile member: any number.
[[nodiscard]] std::uint64_t contents_version(const segment& segment, const slab_info& info);
/// Raises the version for the next set of contents, whose bytes have been written, and which no
/// stream still writes. Precondition: the segment is sealed, was opened for writing, and has one
/// writer.
void set_contents_version(segment& segment, const slab_info& info, std::uint64_t version);
/// Reads and checks the table of a sealed segment; nullopt if it is not sealed (yet). Blocks while
/// it is copied. Throws `error`: protocol_error (it is damaged, or hostile).
[[nodiscard]] std::optional<tensor_table> table_of(const segment& segment, const slab_info& info);
/// Precondition: the segment is sealed. From another process: only compare them.
[[nodiscard]] model_sources sources_of(const segment& segment, const slab_info& info);
/// Adds an identity to the sources, instead of another one if there is no room. Another process may
/// do the same at the same time: one of the two may get lost, and torn ones are equal to none.
/// Precondition: the segment is sealed, was opened for writing, and has sources.
void remember(segment& segment, const slab_info& info, const model_identity& identity);

}  // namespace gpushm::tensors
