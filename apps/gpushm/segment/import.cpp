// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/segment/opened.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm::cli {

namespace {

/// Waiting does not turn another kind of file into a regular one.
void check_regular(const std::string& file) {
  std::error_code failed;
  const auto status = std::filesystem::status(file, failed);
  if (!failed && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw error(errc::invalid_argument,
                "import",
                file,
                "it is not a regular file, so no export created it",
                "give the path that gpushm export --file was given");
  }
}

}  // namespace

int run_import(const import_arguments& arguments) {
  print_warnings();
  check_regular(arguments.file);
  const segment imported = import_file(arguments.file, arguments.options);
  return use_opened(imported, arguments.use, {"imported", arguments.file, true, arguments.json});
}

}  // namespace gpushm::cli
