// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands of gpushm. Each function adds one; `parse` defines their order.

namespace gpushm::cli {

class command_list;

void add_cdi(command_list& commands);
void add_channel(command_list& commands);
void add_create(command_list& commands);
void add_demo(command_list& commands);
void add_doctor(command_list& commands);
void add_explain(command_list& commands);
void add_export(command_list& commands);
void add_import(command_list& commands);
void add_k8s(command_list& commands);
void add_list(command_list& commands);
void add_load(command_list& commands);
void add_lost_gpu(command_list& commands);
void add_matrix(command_list& commands);
void add_open(command_list& commands);
void add_quotas(command_list& commands);
void add_release(command_list& commands);
void add_remove(command_list& commands);
void add_run(command_list& commands);
void add_serve(command_list& commands);
void add_stat(command_list& commands);
void add_topo(command_list& commands);
void add_version(command_list& commands);
void add_wait(command_list& commands);
void add_weights(command_list& commands);

// Hidden from help: other commands start them as processes of their own.
void add_demo_role(command_list& commands);
void add_measure_worker(command_list& commands);
void add_probe_driver(command_list& commands);
void add_trial_side(command_list& commands);
void add_trial_worker(command_list& commands);

}  // namespace gpushm::cli
