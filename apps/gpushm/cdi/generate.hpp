// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "discover/generate.hpp"
#include "spec/write.hpp"

namespace gpushm::cli {

struct generate_arguments {
  discover::generate_options options;
  std::string output;  ///< empty: standard output
  std::optional<cdi::format> format;
  std::string spec_version;  ///< empty: the lowest that fits
  bool quiet = false;
  bool verbose = false;
};

/// What `generate` and `refresh` have in common: all but where to write.
void add_generate_options(CLI::App& app, generate_arguments& out);

/// A document for an output, and what there is to say about it.
struct generated_document {
  cdi::document content;
  std::vector<std::string> found;
  std::vector<discover::absent_things> missing;
  std::vector<std::string> warnings;
};

/// Generates and lowers to the version asked for. Throws as `discover::generate` and
/// `cdi::lower_to` do.
[[nodiscard]] generated_document make_document(const generate_arguments& arguments);

/// Throws `error` (already_exists) when another document beside `output` defines one of the
/// devices: both would become unusable.
void check_no_conflict(const cdi::document& content, const std::string& output);

[[nodiscard]] cdi::format format_of(const generate_arguments& arguments);

/// Adds `gpushm cdi generate`.
void add_cdi_generate(CLI::App& cdi, request& asked);

}  // namespace gpushm::cli
