// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpushm/tensors.hpp"
#include "tensors/files/model_files.hpp"

/// The tensors of a model that a load takes, and the part of each (`load_options::tensors`,
/// `load_options::slices`).
namespace gpushm::tensors {

/// As Python's `fnmatch.fnmatchcase`, of UTF-8: `*`, `?`, `[a-z]`, `[!a-z]`. The time is at most
/// proportional to the product of the lengths.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

/// What the options select, before any file is looked at: equal for equal options, whatever the
/// order of names and dimensions. Empty: all tensors.
[[nodiscard]] std::string selection_text(const load_options& options);

/// Leaves in the files' contents what the options select: tensors, their shapes, and the places of
/// their bytes. Returns a hash of what was selected of what; empty: everything. Throws `error`
/// (invalid_argument) for names and patterns without a tensor, and for slices that a tensor does
/// not have.
[[nodiscard]] std::string apply_selection(std::vector<model_file>& files,
                                          const load_options& options);

}  // namespace gpushm::tensors
