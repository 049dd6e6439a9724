// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cdi/document/document.hpp"
#include "cdi/document/write.hpp"

namespace gpushm::cli {

/// Where a document goes, and in which form.
struct document_output {
  std::string path;  ///< empty: standard output
  std::optional<cdi::format> format;
};

/// `--format`.
void add_document_format(CLI::App& app, document_output& out);
/// `--output` and `--format`.
void add_document_output(CLI::App& app, document_output& out);

/// Prints the document, or writes the file by rename. Throws `error`: already_exists when another
/// document beside the file defines one of the devices, as both would become unusable; what
/// `cdi::write_file` throws. Then the file is as it was. Warns of a name that engines do not read.
void write_document(const cdi::document& content, const document_output& to);

}  // namespace gpushm::cli
