// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpushm_tests {

/// Parses Markdown and declarations, enough to compare documents with the sources. All but the
/// first three functions are pure. Thread-safe.

/// Whether the source tree is still where it was at build time.
[[nodiscard]] bool has_source_tree();
/// The whole file; `path` is relative to the source tree. Throws `std::runtime_error` when it
/// cannot be read.
[[nodiscard]] std::string source_file(const std::string& path);
/// Relative paths of the documents of the root, examples/README.md and all *.md files below docs/
/// and results/.
[[nodiscard]] std::vector<std::string> documents();

/// The text below the heading line `heading` ("## Limits") up to the next heading of the same or a
/// higher level. Empty when there is no such heading.
[[nodiscard]] std::string section(const std::string& text, const std::string& heading);
/// The cells of all table rows, without backticks and without header and separator rows.
[[nodiscard]] std::vector<std::vector<std::string>> table_rows(const std::string& text);
/// The text between ``` lines that begin with "```LANGUAGE".
[[nodiscard]] std::vector<std::string> code_blocks(const std::string& text,
                                                   std::string_view language);
/// Targets of links to files of the source tree, without anchors, relative to the document.
[[nodiscard]] std::vector<std::string> local_links(const std::string& text);

using numbered_name = std::pair<std::uint64_t, std::string>;
/// The enumerators of `enum class NAME` in C++ source; all must have explicit values.
[[nodiscard]] std::vector<numbered_name> enumerators(const std::string& source,
                                                     const std::string& name);
/// "65,536" and "65'536" as a number. Throws `std::runtime_error` for other text.
[[nodiscard]] std::uint64_t number(std::string text);

struct schema_table {
  std::string name;
  std::vector<std::pair<std::string, std::string>> fields;  ///< name and type ("int = -1")
};
[[nodiscard]] std::vector<schema_table> schema_tables(const std::string& schema);
/// Members of `union NAME`, in order.
[[nodiscard]] std::vector<std::string> schema_union(const std::string& schema,
                                                    const std::string& name);

}  // namespace gpushm_tests
