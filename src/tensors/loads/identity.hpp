// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensors/files/file_stamp.hpp"
#include "tensors/files/model_files.hpp"
#include "tensors/loads/slab.hpp"

/// The stamps of files, which show without reading them that they have the contents of a segment.
/// Paths are not part of it, because containers mount one model in different places.
namespace gpushm::tensors {

/// An index that a load was given; it is looked at before it is read.
struct index_file {
  std::string path;
  file_stamp stamp;
};
/// Returns nullopt unless the paths are that of one index. Throws `error` as `open_model`.
[[nodiscard]] std::optional<index_file> index_of(const std::vector<std::string>& paths);

/// Returns the identity of open files, and of the index that names them. `selection`: the selection
/// of their tensors (`selection_text`).
[[nodiscard]] model_identity identity_of(const std::optional<index_file>& index,
                                         std::span<const model_file> files,
                                         std::string_view selection);
/// The names of an index's files, for `identity_at`; empty without an index, or if they are longer
/// than a segment stores.
[[nodiscard]] std::string names_of(const std::optional<index_file>& index,
                                   std::span<const model_file> files);
/// Returns the identity of the files that these paths have now; an index has the files in `names`,
/// which may be hostile. Opens no file. Returns nullopt if they cannot be found so.
[[nodiscard]] std::optional<model_identity> identity_at(const std::vector<std::string>& paths,
                                                        std::string_view names,
                                                        std::string_view selection);

}  // namespace gpushm::tensors
