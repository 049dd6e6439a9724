// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "containers/cdi/document/document.hpp"
#include "containers/cdi/document/write.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

/// The destination and format of a document.
struct document_output {
  std::string path;  ///< empty: standard output
  std::optional<cdi::format> format;
};

/// `--format`.
void add_document_format(CLI::App& app, document_output& out);
/// `--output` and `--format`.
void add_document_output(CLI::App& app, document_output& out);

/// Prints the document, or writes the file by rename. Throws `error`: already_exists when another
/// document in the directory defines one of the devices, because both would become unusable;
/// otherwise as `cdi::write_file`. The file is then unchanged. Warns about a file name that engines
/// do not read.
void write_document(const cdi::document& content, const document_output& output);

}  // namespace gpushm::cli
