// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm-oci-runtime/request.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"
#include "containers/cdi/inject/inject.hpp"

namespace gpushm::oci_runtime {

/// An edit for a container, and its reason.
struct selected {
  cdi::grant given;
  std::string reason;                 ///< that of the request
  std::vector<std::string> left_out;  ///< files and nodes of other capabilities
};

/// Turns the requested devices into the edits of documents: those of each document once, before
/// those of its devices; each device once, even if it is requested by several names. A name that is
/// not qualified is of the default kind: a device's own name, a UUID or an unambiguous prefix of
/// one, an index or "GPU:MIG". For documents whose devices are requested only by such names, only
/// the files of the requested capabilities are added. Throws `error` (device_not_found naming all
/// that no document defines, invalid_argument for capabilities).
[[nodiscard]] std::vector<selected> select_devices(const cdi::registry& registry,
                                                   const request& request,
                                                   const settings& chosen);

}  // namespace gpushm::oci_runtime
