// SPDX-License-Identifier: Apache-2.0
#include "cdi/cdi_arguments.hpp"

#include "cdi/generate.hpp"
#include "cdi/hook.hpp"
#include "cdi/inject.hpp"
#include "cdi/list.hpp"
#include "cdi/refresh.hpp"
#include "cdi/share.hpp"
#include "cdi/validate.hpp"
#include "cdi/watch.hpp"

namespace gpushm::cli {

void add_cdi(CLI::App& root, request& asked) {
  CLI::App* cdi = root.add_subcommand("cdi", "Give containers their GPUs: CDI documents");
  cdi->group("");
  cdi->footer("");
  cdi->require_subcommand(1);
  add_cdi_generate(*cdi, asked);
  add_cdi_hook(*cdi, asked);
  add_cdi_inject(*cdi, asked);
  add_cdi_list(*cdi, asked);
  add_cdi_refresh(*cdi, asked);
  add_cdi_share(*cdi, asked);
  add_cdi_validate(*cdi, asked);
  add_cdi_watch(*cdi, asked);
}

}  // namespace gpushm::cli
