// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushm/options.hpp"
#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// The source of a segment, for output and errors.
struct origin {
  std::string verb;    ///< "opened" or "imported": also the JSON document's key
  std::string object;  ///< the segment's name, or the file
  bool from_file = false;
  bool json = false;
};

/// Reads, prints and keeps open a segment of another process, as `arguments` specify. Returns the
/// exit status. Throws `error`: permission_denied, out_of_memory (the disk is full), system_error,
/// driver_error.
[[nodiscard]] int use_opened(const segment& opened,
                             const use_arguments& arguments,
                             const origin& origin);

}  // namespace gpushm::cli
