// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm-oci-runtime/request.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"
#include "cdi/inject/inject.hpp"

namespace gpushm::oci_runtime {

/// What a container is given, and why.
struct selected {
  cdi::grant given;
  std::string reason;                 ///< that of the wish
  std::vector<std::string> left_out;  ///< files and nodes of other capabilities
};

/// Turns wishes into the edits of documents: those of each document once, before those of its
/// devices; a device once, whatever names it was asked for by. A name that is not qualified is of
/// the default kind: a device's own name, a UUID or the unambiguous beginning of one, an index or
/// "GPU:MIG". Of what is asked for by such names alone, only the files of the wanted capabilities
/// are given. Throws `error` (device_not_found naming all that no document defines,
/// invalid_argument for capabilities).
[[nodiscard]] std::vector<selected> select_devices(const cdi::registry& from,
                                                   const request& asked,
                                                   const settings& chosen);

}  // namespace gpushm::oci_runtime
