// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "gpushm/exchange.hpp"
#include "opened.hpp"

namespace gpushm::cli {

int run_import(const import_arguments& arguments) {
  tell_warnings();
  const segment imported = import_file(arguments.file, arguments.options);
  return use_opened(imported, arguments.use, {"imported", arguments.file, true, arguments.json});
}

}  // namespace gpushm::cli
