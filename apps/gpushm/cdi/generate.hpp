// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/cdi/document_output.hpp"
#include "containers/discover/gpus/generate.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

struct generate_arguments {
  discover::generate_options options;
  document_output output;
  std::string spec_version;  ///< empty: the lowest that suffices
  bool incomplete = false;   ///< accept a document without control nodes
  bool quiet = false;
  bool verbose = false;
};

/// The options common to `generate` and `refresh`, except for the output.
void add_generate_options(CLI::App& app, generate_arguments& out);

/// A document with its log lines.
struct generated_document {
  cdi::document content;
  std::vector<std::string> found;
  std::vector<discover::missing_items> missing;
  std::vector<std::string> warnings;
  std::vector<std::string> missing_control_nodes;
};

/// Generates a document and lowers it to the requested version. Throws as `discover::generate` and
/// `cdi::lower_to` do.
[[nodiscard]] generated_document make_document(const generate_arguments& arguments);

/// Throws `error` (driver_unavailable) if `missing`, of a generated document, is not empty: CUDA
/// would not start in any container.
void require_control_nodes(const std::vector<std::string>& missing);

}  // namespace gpushm::cli
