// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace gpushm::cli {

/// What the command line asks for.
struct request {
  std::function<int()> run;  ///< empty: help was shown or an error told, `status` says which
  int status = 0;
  bool json = false;  ///< errors are told as JSON too
};

/// Reads the command line; tells usage errors on standard error.
[[nodiscard]] request parse(int argc, char** argv);

}  // namespace gpushm::cli
