// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushm/commands.hpp"
#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// How a segment came here, for what is told of it.
struct origin {
  std::string verb;    ///< "opened" or "imported": also the JSON document's key
  std::string object;  ///< its name, or the file
  bool from_file = false;
  bool json = false;
};

/// Reads, tells and holds a segment that others made, as the command line asks. Returns the exit
/// status. Throws `error`: permission_denied, out_of_memory (the disk is full), system_error,
/// driver_error.
[[nodiscard]] int use_opened(const segment& opened,
                             const use_arguments& arguments,
                             const origin& from);

}  // namespace gpushm::cli
