// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/segment/opened.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm::cli {

namespace {

/// What is there and is no regular file never becomes one by waiting.
void check_regular(const std::string& file) {
  std::error_code failed;
  const auto status = std::filesystem::status(file, failed);
  if (!failed && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw error(errc::invalid_argument,
                "import",
                file,
                "it is not a regular file, so no export made it",
                "give the file that was named to gpushm export --file");
  }
}

}  // namespace

int run_import(const import_arguments& arguments) {
  tell_warnings();
  check_regular(arguments.file);
  const segment imported = import_file(arguments.file, arguments.options);
  return use_opened(imported, arguments.use, {"imported", arguments.file, true, arguments.json});
}

}  // namespace gpushm::cli
