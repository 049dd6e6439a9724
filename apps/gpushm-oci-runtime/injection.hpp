// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushm-oci-runtime/command_line.hpp"
#include "apps/gpushm-oci-runtime/journal.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"
#include "containers/cdi/inject/inject.hpp"

namespace gpushm::oci_runtime {

/// Adds the devices that the container requests to `config`, except those already present, and logs
/// each edit. Returns whether anything changed. Throws `error`; `config` is then unchanged.
bool add_devices(cdi::oci_config& config, const settings& chosen, journal& log);

/// Does the same in the bundle, replacing its config.json by rename. Throws `error`; the file is
/// then unchanged.
void edit_bundle(const command_line& called, const settings& chosen, journal& log);

/// Returns what `edit_bundle` would change, as a diff of the indented files. Changes nothing.
[[nodiscard]] std::string difference(const command_line& called,
                                     const settings& chosen,
                                     journal& log);

}  // namespace gpushm::oci_runtime
