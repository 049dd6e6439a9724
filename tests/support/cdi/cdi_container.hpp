// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/support/oci/cleanup_guard.hpp"
#include "tests/support/cdi/cdi_machine.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_tests {

/// A container of the `gpushm` command; the destructor removes it completely.
struct cdi_container {
  std::unique_ptr<gpushm::app::oci::cleanup_guard> guard;
  std::unique_ptr<gpushm_testing::child> process;
};

/// Runs runc with a plain config (no devices, no capabilities, user nobody) to which `gpushm cdi
/// inject` added the CDI `devices` of the documents in `spec_directory`. The image has a C library,
/// a shell and the command, run with `arguments`; everything else comes from the documents and
/// their hooks.
[[nodiscard]] cdi_container start_cdi_container(const cdi_machine& machine,
                                                const std::string& spec_directory,
                                                const std::vector<std::string>& devices,
                                                std::vector<std::string> arguments);

}  // namespace gpushm_tests
