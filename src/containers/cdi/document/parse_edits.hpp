// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "containers/cdi/document/document.hpp"
#include "containers/yaml/reader.hpp"

namespace gpushm::cdi {

/// The state for reading the parts of a document.
struct parse_context {
  yaml::reader& in;
  yaml::reader& warnings;              ///< its problems are warnings
  std::optional<std::size_t> version;  ///< index of a known version; empty: do not check fields

  /// Reports `field` at `where` when the document's version is older than `version`.
  void since(const yaml::node& where, std::string_view needed, std::string_view field) const;
};

/// Reads and checks containerEdits. Reports problems to the reader.
void read_edits(const parse_context& context, const yaml::node& node, edits& out);

}  // namespace gpushm::cdi
