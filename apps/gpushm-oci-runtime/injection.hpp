// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushm-oci-runtime/command_line.hpp"
#include "apps/gpushm-oci-runtime/journal.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"
#include "cdi/inject/inject.hpp"

namespace gpushm::oci_runtime {

/// Gives `config` the devices that its container asks for, without what it has already, and logs
/// each edit. Returns whether anything changed. Throws `error`; `config` is then unchanged.
bool give_devices(cdi::oci_config& config, const settings& chosen, journal& log);

/// Does so in the bundle, replacing its config.json by rename. Throws `error`; the file is then as
/// it was.
void edit_bundle(const command_line& called, const settings& chosen, journal& log);

/// What `edit_bundle` would change, as the difference of the indented files; changes nothing.
[[nodiscard]] std::string difference(const command_line& called,
                                     const settings& chosen,
                                     journal& log);

}  // namespace gpushm::oci_runtime
