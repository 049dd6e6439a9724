// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/inspect/commands.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

void add_doctor(CLI::App& app, doctor_arguments& out);
void add_explain(CLI::App& app, explain_arguments& out);
void add_topo(CLI::App& app, topo_arguments& out);
void add_matrix(CLI::App& app, matrix_arguments& out);
void add_probe_driver(CLI::App& app, probe_driver_arguments& out);
void add_measure_worker(CLI::App& app, measure_worker_arguments& out);
void add_trial_worker(CLI::App& app, trial_worker_arguments& out);
void add_trial_side(CLI::App& app, trial_side_arguments& out);

}  // namespace gpushm::cli
