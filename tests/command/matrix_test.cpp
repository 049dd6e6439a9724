// SPDX-License-Identifier: Apache-2.0
// `gpushm matrix` without containers: its rows, the assignment of GPUs and privileges, and the
// evaluation of outcomes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "apps/gpushm/inspect/matrix/comparison.hpp"
#include "apps/gpushm/inspect/matrix/gpus.hpp"
#include "apps/gpushm/inspect/matrix/published.hpp"
#include "apps/gpushm/inspect/matrix/runner.hpp"
#include "gpushm/error.hpp"
#include "tests/command/matrix_world.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::cli::matrix {
namespace {

using inspect::way;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> numbers_of(const published_table& table) {
  std::vector<int> numbers;
  for (const published_row& each : table.rows) {
    numbers.push_back(row_number_of(table, each));
  }
  return numbers;
}

TEST(matrix_rows, contain_each_setting_once_in_fixed_order) {
  const auto rows = all_rows();
  ASSERT_EQ(rows.size(), 64U);
  std::set<std::string> settings;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].number, static_cast<int>(i) + 1);
    settings.insert(std::to_string(rows[i].host_ipc) + std::to_string(rows[i].host_pid) +
                    std::to_string(rows[i].share_processes) + std::to_string(rows[i].privileged) +
                    std::string(to_string(rows[i].gpus)) + std::string(to_string(rows[i].pids)));
  }
  EXPECT_EQ(settings.size(), 64U);
  EXPECT_EQ(rows.front(),
            (row{1, true, true, false, true, gpu_choice::one_each, pid_values::equal}));
  EXPECT_EQ(rows.back(),
            (row{64, false, false, true, false, gpu_choice::same_set, pid_values::different}));
}

TEST(matrix_rows, half_are_not_applicable) {
  std::map<std::string, int> reasons;
  for (const row& each : all_rows()) {
    ++reasons[why_not_applicable(each)];
  }
  EXPECT_THAT(
      reasons,
      ElementsAre(
          std::pair("", 32),
          std::pair("Kubernetes refuses a pod with both hostPID and shareProcessNamespace", 16),
          std::pair("two processes of one PID namespace never have the same PID", 16)));
}

TEST(matrix_published, each_row_is_an_applicable_row) {
  const auto& tables = published_tables();
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_THAT(numbers_of(tables[0]), ElementsAre(2, 4, 5, 8, 9, 12, 13, 15));
  EXPECT_THAT(numbers_of(tables[1]), ElementsAre(34, 36, 37, 40, 41, 44, 45, 47));
  EXPECT_THAT(numbers_of(tables[2]), ElementsAre(34, 36, 37, 40, 53 + 1, 61 + 1, 41, 64, 47));
  for (const auto& table : tables) {
    for (const int number : numbers_of(table)) {
      EXPECT_EQ(why_not_applicable(row_numbered(number)), "") << number;
    }
  }
}

TEST(matrix_published, all_rows_agree_with_predictions) {
  const auto matrix = predicted_matrix(world());
  for (const published_table& table : published_tables()) {
    const auto rows = compare(table, matrix);
    ASSERT_EQ(rows.size(), table.rows.size());
    for (const compared_row& each : rows) {
      EXPECT_EQ(each.here, each.published) << table.id << " row " << each.measured->setting.number;
    }
    EXPECT_THAT(verdict_of(rows),
                ElementsAre(std::to_string(rows.size()) + " of " + std::to_string(rows.size()) +
                            " rows ran, all as published."));
  }
}

TEST(matrix_published, different_row_has_reason) {
  auto matrix = predicted_matrix(world());
  auto outcome = outcome_for(row_numbered(2));
  outcome.result = trial_result::fails;
  outcome.failure = "CUDA_ERROR_INVALID_VALUE (1)";
  matrix.rows[1].cells[0] =
      judge(row_numbered(2), way::raw_legacy, sides_of(row_numbered(2), world()), outcome);
  matrix.rows[3].cells = unused_cells(matrix.ways, cell_state::not_run, "no GPU");
  const auto rows = compare(published_tables()[0], matrix);
  EXPECT_THAT(verdict_of(rows),
              ElementsAre("7 of 8 rows ran, 1 not as published.",
                          "Row 2 differs: published is \"success\", here it is \"invalid "
                          "argument\": the importer may open the GPU, and the two PIDs differ in "
                          "value."));
  EXPECT_FALSE(rows[1].differs()) << "a row that did not run neither agrees nor differs";
}

TEST(matrix_prediction, gpushm_works_if_both_sides_may_open_the_gpu) {
  const auto matrix = predicted_matrix(world());
  int checked = 0;
  for (const row_result& row : matrix.rows) {
    const bool split = row.setting.gpus == gpu_choice::one_each && !row.setting.privileged;
    for (const cell& each : row.cells) {
      if (each.ran() && each.how != way::raw_legacy) {
        ++checked;
        EXPECT_EQ(each.state == cell_state::works, !split || each.how == way::host)
            << row.setting.number << " " << to_string(each.how);
      }
    }
  }
  EXPECT_EQ(checked, 128);
}

TEST(matrix_assignment, one_each_assigns_different_gpus_unless_privileged) {
  const auto split = assign(row_numbered(15), world());
  EXPECT_THAT(split.exporter_minors, ElementsAre(0));
  EXPECT_THAT(split.importer_minors, ElementsAre(1));
  EXPECT_EQ(split.exporter_device, "GPU-aaaaaaaa-0000");
  EXPECT_EQ(split.importer_device, "GPU-bbbbbbbb-0000");
  EXPECT_EQ(split.gpu, 0);
  const auto privileged = assign(row_numbered(9), world());
  EXPECT_THAT(privileged.exporter_minors, ElementsAre(0, 1, 2));
  EXPECT_THAT(privileged.importer_minors, ElementsAre(0, 1, 2));
  EXPECT_EQ(privileged.importer_device, "GPU-aaaaaaaa-0000");
}

TEST(matrix_assignment, same_set_importer_uses_other_gpu_with_peer_access) {
  const auto both = assign(row_numbered(47), world());
  EXPECT_THAT(both.exporter_minors, ElementsAre(0, 1));
  EXPECT_THAT(both.importer_minors, ElementsAre(0, 1));
  EXPECT_EQ(both.importer_device, "GPU-bbbbbbbb-0000");
  auto apart = world();
  apart.peer_access = false;
  EXPECT_EQ(assign(row_numbered(47), apart).importer_device, "GPU-aaaaaaaa-0000");
  const auto one = assign(row_numbered(47), world(1));
  EXPECT_THAT(one.importer_minors, ElementsAre(0));
  EXPECT_EQ(one.importer_device, "GPU-aaaaaaaa-0000");
  EXPECT_EQ(assign(row_numbered(47), world(0)).gpu, -1);
}

class matrix_containers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2"}) {
      std::ofstream(dev_ / name) << "";
    }
    ::setenv("GPUSHM_DEV_ROOT", dev_.path().c_str(), 1);
  }
  void TearDown() override { ::unsetenv("GPUSHM_DEV_ROOT"); }

  [[nodiscard]] static std::vector<std::string> nodes(const app::oci::container_options& options) {
    std::vector<std::string> names;
    for (const auto& node : options.device_nodes) {
      names.push_back(node.inside);
    }
    return names;
  }

  gpushm_testing::temp_dir dev_;
};

TEST_F(matrix_containers, plain_pods_share_only_the_domain) {
  const auto exporter = options_of(row_numbered(15), world(), true, 0);
  const auto importer = options_of(row_numbered(15), world(), false, 0);
  EXPECT_EQ(exporter.uid, 1000U);
  EXPECT_EQ(importer.uid, 2000U);
  for (const auto* each : {&exporter, &importer}) {
    EXPECT_FALSE(each->privileged);
    for (const auto* kind : {&each->pid, &each->ipc, &each->net}) {
      EXPECT_FALSE(kind->host);
      EXPECT_EQ(kind->path, "");
    }
    EXPECT_EQ(each->shm, "");
    ASSERT_EQ(each->mounts.size(), 1U);
    EXPECT_EQ(each->mounts[0].source, "/host/domain");
    EXPECT_EQ(each->mounts[0].destination, "/run/gpushm/d/matrix");
    EXPECT_FALSE(each->mounts[0].writable);
    EXPECT_THAT(each->argv, ElementsAre(base::executable_path(), "trial-worker"));
  }
  EXPECT_THAT(nodes(exporter), ElementsAre("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"));
  EXPECT_THAT(nodes(importer), ElementsAre("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"));
  EXPECT_EQ(exporter.device_nodes[2].host, dev_ / "nvidia0");
}

TEST_F(matrix_containers, spare_pid_is_used_in_private_namespaces_only) {
  const std::vector<std::string> spare{
      base::executable_path(), "trial-worker", "--spare-pids", "1"};
  EXPECT_EQ(options_of(row_numbered(16), world(), false, 0).argv, spare);
  EXPECT_EQ(options_of(row_numbered(16), world(), true, 0).argv.size(), 2U);
  EXPECT_EQ(options_of(row_numbered(32), world(), false, 99).argv.size(), 2U);
  EXPECT_EQ(options_of(row_numbered(12), world(), false, 0).argv.size(), 2U);
}

TEST_F(matrix_containers, library_for_unchanged_programs_is_for_their_columns_only) {
  run_environment environment = world();
  environment.ipc_library = true;
  for (const bool is_exporter : {true, false}) {
    const auto options = options_of(row_numbered(47), environment, is_exporter, 0);
    EXPECT_THAT(options.argv,
                ElementsAre(base::executable_path(),
                            "trial-worker",
                            "--ipc-library",
                            "/run/gpushm/ipc/libgpushm-ipc.so",
                            "--ipc-socket",
                            "/run/gpushm/d/matrix/socket"));
    for (const auto& [name, value] : options.env) {
      EXPECT_NE(name, "LD_PRELOAD") << value;
    }
  }
}

TEST_F(matrix_containers, library_is_mounted_with_the_client_library_beside_it) {
  std::ofstream(dev_ / "libgpushm-ipc.so") << "x";
  std::ofstream(dev_ / "libgpushm.so.1.0.0") << "x";
  std::filesystem::create_symlink("libgpushm.so.1.0.0", dev_ / "libgpushm.so.1");
  const auto mounts = ipc_mounts(dev_ / "libgpushm-ipc.so");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].destination, ipc_library_inside);
  EXPECT_EQ(mounts[1].source, dev_ / "libgpushm.so.1.0.0");
  EXPECT_EQ(mounts[1].destination, "/run/gpushm/ipc/libgpushm.so.1");
  EXPECT_FALSE(mounts[0].writable || mounts[1].writable);
}

TEST_F(matrix_containers, in_one_pod_join_its_namespaces) {
  const auto options = options_of(row_numbered(64), world(), true, 99);
  EXPECT_EQ(options.pid.path, "/proc/99/ns/pid");
  EXPECT_EQ(options.ipc.path, "/proc/99/ns/ipc");
  EXPECT_EQ(options.net.path, "/proc/99/ns/net");
  EXPECT_EQ(options.shm, "/host/shm");
}

TEST_F(matrix_containers, privileged_row_has_host_namespaces_and_all_gpus) {
  const auto options = options_of(row_numbered(2), world(), false, 0);
  EXPECT_TRUE(options.pid.host);
  EXPECT_TRUE(options.ipc.host);
  EXPECT_FALSE(options.net.host);
  EXPECT_EQ(options.shm, "/dev/shm");
  EXPECT_TRUE(options.privileged);
  EXPECT_EQ(options.uid, 0U);
  EXPECT_THAT(
      nodes(options),
      ElementsAre(
          "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"));
}

TEST(matrix_cells, without_enough_gpus_are_not_run) {
  const row each = row_numbered(15);
  const row same = row_numbered(47);
  EXPECT_EQ(why_not_run(each, way::legacy, 0), "no GPU");
  EXPECT_EQ(why_not_run(same, way::raw_legacy, 0), "no GPU");
  EXPECT_EQ(why_not_run(each, way::host, 0), "");
  EXPECT_EQ(why_not_run(each, way::vmm, 1), "needs two GPUs");
  EXPECT_EQ(why_not_run(each, way::host, 1), "needs two GPUs");
  EXPECT_EQ(why_not_run(same, way::vmm, 1), "");
  EXPECT_EQ(why_not_run(each, way::vmm, 2), "");
}

TEST(matrix_judge, uses_prediction_for_actual_pids) {
  const row setting = row_numbered(47);
  auto outcome = outcome_for(setting);
  outcome.result = trial_result::fails;
  outcome.side = "importer";
  outcome.failure = "CUDA_ERROR_INVALID_CONTEXT (201)";
  outcome.text = "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT (201)";
  const auto made = judge(setting, way::raw_legacy, sides_of(setting, world()), outcome);
  EXPECT_EQ(made.state, cell_state::fails);
  EXPECT_TRUE(made.ran());
  EXPECT_TRUE(made.as_predicted());
  EXPECT_EQ(made.why,
            "both processes have PID 7 in their namespaces: the driver treats the handle as one of "
            "the importer's own");
  EXPECT_EQ(made.text, outcome.text);
}

TEST(matrix_judge, different_outcome_or_error_is_not_as_predicted) {
  const row setting = row_numbered(47);
  const auto both = sides_of(setting, world());
  auto outcome = outcome_for(setting);
  outcome.result = trial_result::works;
  EXPECT_FALSE(judge(setting, way::raw_legacy, both, outcome).as_predicted());
  EXPECT_TRUE(judge(setting, way::legacy, both, outcome).as_predicted());
  outcome.result = trial_result::fails;
  outcome.failure = "CUDA_ERROR_INVALID_VALUE (1)";
  EXPECT_FALSE(judge(setting, way::raw_legacy, both, outcome).as_predicted());
  outcome.result = trial_result::crashes;
  outcome.failure = "CUDA_ERROR_INVALID_CONTEXT (201)";
  EXPECT_FALSE(judge(setting, way::raw_legacy, both, outcome).as_predicted());
}

TEST(matrix_judge, wrong_pids_count_as_not_run) {
  const row equal = row_numbered(47);
  const row different = row_numbered(48);
  auto outcome = outcome_for(different);
  outcome.result = trial_result::works;
  auto made = judge(equal, way::vmm, sides_of(equal, world()), outcome);
  EXPECT_EQ(made.state, cell_state::not_run);
  EXPECT_EQ(made.why, "PIDs were different (exporter 7, importer 8)");
  EXPECT_FALSE(made.ran());
  outcome = outcome_for(equal);
  outcome.result = trial_result::works;
  made = judge(different, way::vmm, sides_of(different, world()), outcome);
  EXPECT_EQ(made.state, cell_state::not_run);
  EXPECT_EQ(made.why, "PIDs were equal (exporter 7, importer 7)");
  outcome.importer_pid = 0;
  made = judge(different, way::vmm, sides_of(different, world()), outcome);
  EXPECT_EQ(made.state, cell_state::not_run);
  EXPECT_EQ(made.why, "no PIDs were reported");
  outcome = outcome_for(different);
  outcome.failure = "this way was already tested with this pair";
  made = judge(different, way::vmm, sides_of(different, world()), outcome);
  EXPECT_EQ(made.state, cell_state::not_run);
  EXPECT_EQ(made.why, outcome.failure);
}

TEST(matrix_cells, that_did_not_run_are_counted_separately) {
  auto matrix = predicted_matrix(world());
  auto sum = count(matrix);
  EXPECT_EQ(sum.ran, 160);
  EXPECT_EQ(sum.as_predicted, 160);
  EXPECT_EQ(sum.not_run, 0);
  EXPECT_EQ(sum.not_applicable, 160);
  matrix.rows[1].cells = unused_cells(matrix.ways, cell_state::not_run, "no GPU");
  matrix.rows[3].cells[0].state = cell_state::crashes;
  sum = count(matrix);
  EXPECT_EQ(sum.ran, 155);
  EXPECT_EQ(sum.as_predicted, 154);
  EXPECT_EQ(sum.not_run, 5);
  EXPECT_EQ(sum.not_applicable, 160);
}

inspect::driver_view two_gpus() {
  inspect::driver_view view;
  for (const int number : {0, 1, 2}) {
    inspect::cuda_gpu_view seen;
    seen.ordinal = number;
    seen.uuid = "GPU-" + std::string(8, static_cast<char>('a' + number)) + "-0000";
    seen.name = "GPU";
    seen.pci_address = "ffff:0" + std::to_string(number) + ":00.0";
    view.cuda.gpus.push_back(seen);
    inspect::nvml_gpu_view listed;
    listed.uuid = seen.uuid;
    listed.minor = 5 + number;
    view.nvml.gpus.push_back(listed);
  }
  view.cuda.gpus[2].uuid = "MIG-cccccccc-0000";
  return view;
}

TEST(matrix_gpus, are_whole_gpus_with_known_nodes) {
  const auto gpus = gpus_of(two_gpus());
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[1].text(), "GPU (GPU-bbbbbbbb-0000, /dev/nvidia6)");
  auto unknown = two_gpus();
  unknown.nvml.gpus.clear();
  EXPECT_THAT(gpus_of(unknown), IsEmpty());
}

TEST(matrix_gpus, are_chosen_by_number_or_uuid) {
  const auto gpus = gpus_of(two_gpus());
  EXPECT_EQ(choose_gpus(gpus, {}).size(), 2U);
  EXPECT_EQ(choose_gpus({}, {}).size(), 0U);
  const auto turned = choose_gpus(gpus, {"1", "GPU-aaaaaaaa"});
  ASSERT_EQ(turned.size(), 2U);
  EXPECT_EQ(turned[0].minor, 6);
  EXPECT_EQ(turned[1].minor, 5);
  EXPECT_EQ(choose_gpus(gpus, {"1"}).size(), 1U);
  try {
    (void)choose_gpus(gpus, {"0", "GPU-aaaaaaaa"});
    FAIL() << "a GPU was accepted twice";
  } catch (const error& refused) {
    EXPECT_STREQ(refused.what(),
                 "run matrix \"GPU-aaaaaaaa\": this GPU is listed twice (pass two different GPUs, "
                 "or one)");
  }
  try {
    (void)choose_gpus(gpus, {"7"});
    FAIL() << "found";
  } catch (const error& refused) {
    EXPECT_EQ(refused.code(), errc::device_not_found);
    EXPECT_THAT(refused.what(), HasSubstr("\"7\""));
  }
}

}  // namespace
}  // namespace gpushm::cli::matrix
