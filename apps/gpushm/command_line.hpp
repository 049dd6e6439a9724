// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace gpushm::cli {

/// A parsed command line.
struct request {
  std::function<int()> run;  ///< empty: help or an error was printed, exit with `status`
  int status = 0;
  bool json = false;  ///< print errors as JSON too
};

/// Parses the command line; prints usage errors to standard error.
[[nodiscard]] request parse(int argc, char** argv);

}  // namespace gpushm::cli
