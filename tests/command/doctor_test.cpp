// SPDX-License-Identifier: Apache-2.0
// `gpushm doctor` as a program: on fake GPUs, without GPUs, on recordings, and with invalid input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files/sanitizers.hpp"
#include "gpu/driver/connections.hpp"
#include "gpu/streams/waiting_streams.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/machines/machines.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class doctor_cli : public ::testing::Test {
 protected:
  [[nodiscard]] run_result doctor(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "doctor");
    auto command = cli_.command(std::move(arguments));
    for (const auto& each : environment_) {
      command.env.push_back(each);
    }
    return gpushm_testing::run_program(command, seconds(90));
  }
  void use_fake_gpus(int count) {
    gpushm::fake::fake_gpus_options options;
    options.gpus = count;
    fake_.emplace(options);
    environment_ = fake_->environment();
  }
  void change_fake_gpu(std::size_t which, void (*change)(gpushm::fake::gpu_properties&)) {
    auto gpus = fake_->gpus();
    change(gpus.at(which));
    std::ofstream(fake_->root() + "/gpus.conf") << gpushm::fake::format_config(gpus);
  }
  static std::map<std::string, std::string> verdicts(const json& document) {
    std::map<std::string, std::string> verdict_of;
    for (const auto& each : document.at("checks")) {
      verdict_of[each.at("id")] = each.at("verdict");
    }
    return verdict_of;
  }

  cli cli_;
  std::optional<gpushm::fake::fake_gpus> fake_;
  std::vector<std::pair<std::string, std::string>> environment_;
};

TEST_F(doctor_cli, without_gpu_tests_host_memory) {
  const auto ran = doctor({"--json"});
  const json document = json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << ran.status.text() << ran.out << ran.err;
  if (!document.at("facts").at("gpus").empty()) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  EXPECT_EQ(ran.status, exited(0)) << ran.out << ran.err;
  EXPECT_EQ(document.at("summary").at("problems"), 0);
  EXPECT_EQ(verdicts(document).at("libcuda"), "not applicable");
  int ran_trials = 0;
  for (const auto& trial : document.at("selftest")) {
    EXPECT_EQ(trial.at("device"), "host");
    if (trial.at("result") != "not run") {
      EXPECT_EQ(trial.at("result"), "works") << trial;
      ++ran_trials;
    }
  }
  EXPECT_GE(ran_trials, 1);
}

TEST_F(doctor_cli, checks_ipc_of_unchanged_programs) {
  use_fake_gpus(1);
  const std::string library = gpushm_testing::own_library("libgpushm-ipc.so");
  environment_.emplace_back("LD_PRELOAD", library);
  // Found by the loader here; beside the library where it is installed.
  const std::filesystem::path client = gpushm_testing::own_library("libgpushm.so.1");
  for (auto& [name, value] : environment_) {
    if (name == "LD_LIBRARY_PATH") {
      value += ":" + client.parent_path().string();
    }
  }
  const auto ran = doctor({"--ipc", "--accept-fake-chunks", "--json"});
  const json document = json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << ran.status.text() << ran.out << ran.err;
  const auto verdict_of = verdicts(document);
  EXPECT_EQ(verdict_of.at("ipc-library"), "ok") << ran.out;
  EXPECT_EQ(verdict_of.at("ipc-loader"), "ok") << ran.out;
  EXPECT_EQ(verdict_of.at("ipc-switch"), "ok");
  for (const char* id : {"ipc-trial", "ipc-no-domain", "ipc-one-side"}) {
    EXPECT_THAT(verdict_of.at(id), ::testing::AnyOf("ok", "not applicable")) << ran.out;
  }
  EXPECT_FALSE(document.contains("facts"));
  EXPECT_THAT(document.at("conclusion").get<std::string>(), HasSubstr("unchanged programs"));

  environment_.emplace_back("GPUSHM_IPC", "0");
  const auto off = doctor({"--ipc", "--no-selftest"});
  EXPECT_EQ(off.status, exited(1)) << off.out;
  EXPECT_THAT(off.out, HasSubstr("ipc-switch        GPUSHM_IPC=0\n"));
  EXPECT_THAT(off.out, HasSubstr("fix the problems above"));
}

TEST_F(doctor_cli, ipc_names_missing_library_and_wrong_path) {
  const auto wrong = doctor({"--ipc", "--ipc-library", "/no/such/libgpushm-ipc.so"});
  EXPECT_EQ(wrong.status, exited(1)) << wrong.out;
  EXPECT_THAT(wrong.err, HasSubstr("there is no such file"));
  environment_.emplace_back("GPUSHM_IPC_DOMAIN", "..");
  const auto domain = doctor({"--ipc", "--no-selftest"});
  EXPECT_THAT(domain.out, HasSubstr("none (GPUSHM_IPC_DOMAIN=..): connect"));
  EXPECT_THAT(domain.out, HasSubstr("the name of a domain (set it"));
  const auto with_peer = doctor({"--ipc", "--peer", "1"});
  EXPECT_EQ(with_peer.status, exited(2));
}

TEST_F(doctor_cli, shows_how_many_streams_can_wait) {
  for (const char* const connections : {"", "2", "6", "32"}) {
    environment_ = {{"CUDA_DEVICE_MAX_CONNECTIONS", connections}};
    const auto ran = doctor({"--no-selftest", "--json"});
    const json document = json::parse(ran.out);
    const auto& checks = document.at("checks");
    const auto at = std::find_if(checks.begin(), checks.end(), [](const json& each) {
      return each.at("id") == "waiting-streams";
    });
    ASSERT_NE(at, checks.end());
    EXPECT_EQ(at->at("verdict"), "ok");
    // As the library counts.
    const gpushm::streams::waiting_streams counts(gpushm::driver::connections_in(connections));
    EXPECT_THAT(at->at("seen").get<std::string>(),
                HasSubstr(std::to_string(counts.connections()) + " connections: at most " +
                          std::to_string(counts.limit()) + " of"));
  }
  environment_ = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  EXPECT_THAT(doctor({"--no-selftest"}).out,
              HasSubstr("warning   waiting-streams   CUDA_DEVICE_MAX_CONNECTIONS=1: no stream can "
                        "wait for a timeline\n"));
}

TEST_F(doctor_cli, tests_every_way_on_every_gpu) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer runs a thread in each process, which uses a PID";
  }
  use_fake_gpus(2);
  const auto ran = doctor({"--json", "--accept-fake-chunks"});
  EXPECT_EQ(ran.status, exited(0)) << ran.out << ran.err;
  const json document = json::parse(ran.out);
  EXPECT_EQ(document.at("facts").at("gpus").size(), 2U);
  EXPECT_EQ(verdicts(document).at("gpu-nodes"), "ok");
  std::map<std::string, int> outcomes;
  for (const auto& trial : document.at("selftest")) {
    if (trial.at("not_permitted") != "") {
      continue;
    }
    EXPECT_EQ(trial.at("as_predicted"), true) << trial;
    EXPECT_EQ(trial.at("exporter_pid") == trial.at("importer_pid"), trial.at("equal_pids"))
        << trial;
    ++outcomes[trial.at("way").get<std::string>() + " " + trial.at("failure").get<std::string>()];
  }
  for (const char* way : {"cuda-ipc ", "cuda-vmm ", "cuda-pool ", "raw-legacy "}) {
    EXPECT_GE(outcomes[way], 2) << way;
  }
  if (::geteuid() == 0) {
    EXPECT_EQ(outcomes["raw-legacy CUDA_ERROR_INVALID_CONTEXT (201)"], 2)
        << "once per GPU, with equal PIDs";
  }
  // Replay the output: the result must be the same.
  const std::string file = cli_.directory() / "facts.json";
  std::ofstream(file) << ran.out;
  environment_.clear();
  const auto replayed = doctor({"--json", "--from", file});
  EXPECT_EQ(replayed.status, exited(0)) << replayed.err;
  auto before = verdicts(document);
  auto after = verdicts(json::parse(replayed.out));
  EXPECT_EQ(after.at("broker"), "not applicable") << "a recording has no broker";
  before.erase("broker");
  after.erase("broker");
  EXPECT_EQ(after, before);
  EXPECT_TRUE(json::parse(replayed.out).at("selftest").is_null());
}

TEST_F(doctor_cli, reports_rdma_support_of_each_gpu) {
  use_fake_gpus(2);
  EXPECT_EQ(verdicts(json::parse(doctor({"--json", "--no-selftest"}).out)).at("rdma"), "ok");
  change_fake_gpu(1, [](auto& gpu) { gpu.rdma_vmm = false; });
  const auto ran = doctor({"--json", "--no-selftest"});
  EXPECT_EQ(ran.status, exited(0));
  const json document = json::parse(ran.out);
  EXPECT_EQ(verdicts(document).at("rdma"), "note");
  for (const std::size_t which : {0U, 1U}) {
    const json view = document.at("facts").at("gpus").at(which).at("cuda").at(0);
    EXPECT_EQ(view.at("rdma"), true);
    EXPECT_EQ(view.at("rdma_vmm"), which == 0);
  }
}

TEST_F(doctor_cli, selftest_reports_rdma_capable_memory) {
  use_fake_gpus(1);
  EXPECT_THAT(doctor({"--accept-fake-chunks"}).out, HasSubstr("cuda-vmm works (RDMA capable)"));
  change_fake_gpu(0, [](auto& gpu) { gpu.rdma_ignored = true; });
  const auto ran = doctor({"--accept-fake-chunks"});
  EXPECT_EQ(ran.status, exited(0)) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("cuda-vmm works (not RDMA capable)"));
  EXPECT_THAT(ran.out,
              HasSubstr("why: the GPU supports RDMA capable memory, but cuMemCreate did not\n"));
}

TEST_F(doctor_cli, failing_driver_is_a_problem) {
  use_fake_gpus(1);
  environment_.emplace_back("GPUSHM_FAKE_FAIL", "cuInit:*=999");
  const auto ran = doctor({"--json", "--no-selftest"});
  EXPECT_EQ(ran.status, exited(1));
  const json document = json::parse(ran.out);
  EXPECT_EQ(verdicts(document).at("cuinit"), "problem");
  EXPECT_EQ(document.at("facts").at("driver").at("cuda").at("result"), 999);
  EXPECT_TRUE(document.at("selftest").is_null());
}

/// GPUs without persistence mode, or many concurrent processes.
TEST_F(doctor_cli, slow_driver_prints_a_note) {
  use_fake_gpus(1);
  environment_.emplace_back("GPUSHM_FAKE_FAIL", "cuInit:*=after2600");
  const auto ran = doctor({"--json", "--no-selftest"});
  EXPECT_EQ(ran.status, exited(0)) << ran.out;
  EXPECT_EQ(verdicts(json::parse(ran.out)).at("cuinit"), "ok");
  EXPECT_EQ(ran.err,
            "gpushm: waiting for the driver, 30.0 s at most (without persistence mode GPUs take "
            "seconds each)\n");
}

TEST_F(doctor_cli, driver_timeout_is_a_problem) {
  use_fake_gpus(1);
  environment_.emplace_back("GPUSHM_FAKE_FAIL", "cuInit:*=after30000");
  const auto begin = std::chrono::steady_clock::now();
  const auto ran = doctor({"--json", "--no-selftest", "--driver-timeout", "300ms"});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::scaled_timeout(seconds(10)));
  EXPECT_EQ(json::parse(ran.out).at("facts").at("driver").at("failure"),
            "no answer within 300 ms (without persistence mode GPUs take longer the first time)");
  EXPECT_EQ(ran.err, "");
}

TEST_F(doctor_cli, missing_gpu_node_is_reported) {
  use_fake_gpus(2);
  environment_.emplace_back("GPUSHM_DEV_ROOT", fake_->make_dev_root("one", {0}));
  const auto ran = doctor({"--json", "--no-selftest"});
  const json document = json::parse(ran.out);
  // In a container this is intended.
  EXPECT_THAT(verdicts(document).at("gpu-nodes"), ::testing::AnyOf("warning", "note"));
  EXPECT_EQ(document.at("facts").at("gpus").at(1).at("open_error"), ENOENT);
}

TEST_F(doctor_cli, reports_broker) {
  auto broker = cli_.serve({"--domain", "team"});
  const auto ran = doctor({"--json", "--no-selftest"});
  const json about = json::parse(ran.out).at("facts").at("broker");
  EXPECT_EQ(about.at("reachable"), true);
  EXPECT_EQ(about.at("domain"), "team");
  EXPECT_EQ(about.at("protocol"), 2);
}

TEST_F(doctor_cli, compares_with_a_peer) {
  use_fake_gpus(2);
  auto peer = cli_.serve();
  const auto ran = doctor({"--json", "--no-selftest", "--peer", std::to_string(peer.pid())});
  const json document = json::parse(ran.out);
  ASSERT_FALSE(document.at("peer").is_null()) << ran.out;
  EXPECT_EQ(document.at("facts").at("peer").at("pid"), peer.pid());
  int directions = 0;
  for (const auto& each : document.at("peer")) {
    directions += each.at("way") == "cuda-vmm" ? 1 : 0;
    EXPECT_NE(each.at("why"), "");
  }
  EXPECT_EQ(directions, 4) << "two GPUs, both directions";
}

TEST_F(doctor_cli, output_is_plain_text_within_100_columns) {
  for (const std::string& machine : machine_names()) {
    const auto ran = doctor({"--from", machine_path(machine)});
    EXPECT_THAT(ran.out, Not(HasSubstr("\x1b"))) << "no colours without a terminal";
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100U) << line;
    }
    EXPECT_THAT(ran.out, HasSubstr("problem")) << "the summary";
  }
}

TEST_F(doctor_cli, starts_with_root_cause_and_ends_with_conclusion) {
  const auto last_line = [](const std::string& text) {
    const auto end = text.find_last_not_of('\n');
    return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
  };
  const auto drifted = doctor({"--from", machine_path("uvm-drift")});
  EXPECT_EQ(drifted.status, exited(1));
  EXPECT_THAT(
      drifted.out,
      ::testing::StartsWith(
          "Root cause: /dev/nvidia-uvm has major 508, the kernel has 511 [uvm-major]\n"
          "  do: on the host: rm /dev/nvidia-uvm; nvidia-modprobe -u -c 0; then restart the "
          "container\n"));
  EXPECT_THAT(drifted.out, HasSubstr("\n1 problem, "));
  EXPECT_THAT(drifted.out, HasSubstr("follows from uvm-major"));
  EXPECT_THAT(drifted.out, Not(HasSubstr("cdi generate"))) << "documents have no major numbers";
  EXPECT_EQ(last_line(drifted.out),
            "sharing may fail here: fix the problems above, then rerun gpushm doctor");

  const auto pod = doctor({"--from", machine_path("dra-pod")});
  EXPECT_EQ(pod.status, exited(0)) << pod.out;
  EXPECT_THAT(pod.out, HasSubstr("\n0 problems, 0 warnings, ")) << pod.out;
  EXPECT_EQ(last_line(pod.out), "sharing through gpushm should work here");
  EXPECT_EQ(last_line(doctor({"--from", machine_path("no-driver")}).out),
            "sharing host memory through gpushm should work here");
}

TEST_F(doctor_cli, invalid_use_is_rejected) {
  const auto missing = doctor({"--peer", "2147483000"});
  EXPECT_EQ(missing.status, exited(1));
  EXPECT_EQ(missing.err,
            "gpushm: doctor \"--peer 2147483000\": no such process (pass its PID as listed in this "
            "process's /proc)\n");
  EXPECT_EQ(doctor({"--peer", "0"}).status, exited(2));
  EXPECT_EQ(doctor({"--peer", "1", "--peer-container", "x"}).status, exited(2));
  EXPECT_EQ(doctor({"--from", "x", "--peer", "1"}).status, exited(2));
  EXPECT_EQ(doctor({"stray"}).status, exited(2));
  const auto no_file = doctor({"--from", "/nowhere.json"});
  EXPECT_EQ(no_file.status, exited(1));
  EXPECT_THAT(no_file.err, HasSubstr("read recording \"/nowhere.json\": the file cannot be read"));
  const std::string file = cli_.directory() / "garbage";
  std::ofstream(file) << "\x7f"
                         "ELF garbage";
  EXPECT_THAT(doctor({"--from", file}).err, HasSubstr("it is not JSON"));
  std::ofstream(file) << "[]";
  EXPECT_THAT(doctor({"--from", file}).err,
              HasSubstr("it is JSON, but array instead of an object"));
}

}  // namespace
}  // namespace gpushm_tests
