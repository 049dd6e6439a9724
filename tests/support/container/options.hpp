// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/support/oci/options.hpp"

namespace gpushm_testing {

using gpushm::app::oci::bind_mount;
using gpushm::app::oci::container_options;
using gpushm::app::oci::device_node;
using gpushm::app::oci::user_namespace;

/// Mounts the tree of one of the project's programs, read-only and at the same path, and makes it
/// the first argument. `name` as in `own_program`.
void use_own_program(container_options& options, const std::string& name);

}  // namespace gpushm_testing
