// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/k8s_arguments.hpp"

#include <CLI/CLI.hpp>

#include "apps/gpushm/k8s/lint_command.hpp"

namespace gpushm::cli {

void add_k8s(CLI::App& root, request& parsed) {
  CLI::App* k8s = root.add_subcommand("k8s", "Check manifests of pods that share GPU memory");
  k8s->footer("");
  k8s->require_subcommand(1);
  add_k8s_lint(*k8s, parsed);
}

}  // namespace gpushm::cli
