// SPDX-License-Identifier: Apache-2.0
#include "cdi/cdi_arguments.hpp"

#include "cdi/inject.hpp"
#include "cdi/share.hpp"

namespace gpushm::cli {

void add_cdi(CLI::App& root, request& asked) {
  CLI::App* cdi = root.add_subcommand("cdi", "Give containers their GPUs: CDI documents");
  cdi->group("");
  cdi->footer("");
  cdi->require_subcommand(1);
  add_cdi_inject(*cdi, asked);
  add_cdi_share(*cdi, asked);
}

}  // namespace gpushm::cli
