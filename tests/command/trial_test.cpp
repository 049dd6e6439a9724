// SPDX-License-Identifier: Apache-2.0
// Trials of sharing between pairs of `gpushm trial-worker` on fake GPUs: successes, failures with
// their messages, and deaths.

#include "apps/gpushm/inspect/trial/trial.hpp"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files/file.hpp"
#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::base::child_options;
using gpushm::base::child_process;
using gpushm::base::deadline_in;
using gpushm::cli::run_trial;
using gpushm::cli::trial_outcome;
using gpushm::cli::trial_result;
using gpushm::cli::trial_setup;
using gpushm::inspect::way;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using std::chrono::seconds;
using ::testing::HasSubstr;
using variables = std::vector<std::pair<std::string, std::string>>;

constexpr way gpu_ways[] = {way::raw_legacy, way::legacy, way::vmm, way::pool};

/// Host PIDs of all processes that run `gpushm trial-worker` with the fake GPUs at `root`.
std::vector<pid_t> workers_of(const std::string& root) {
  std::vector<pid_t> workers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const auto command = gpushm::base::read_small_file("/proc/" + name + "/cmdline").value_or("");
    const auto environment =
        gpushm::base::read_small_file("/proc/" + name + "/environ").value_or("");
    if (command.find("trial-worker") != std::string::npos &&
        environment.find("GPUSHM_FAKE_GPU_ROOT=" + root) != std::string::npos) {
      workers.push_back(std::stoi(name));
    }
  }
  return workers;
}

class trial : public ::testing::Test {
 protected:
  trial() : gpus_(two_gpus()), broker_(gpushm::broker::start(broker_options())) {
    ::signal(SIGPIPE, SIG_IGN);
  }
  ~trial() override {
    // No trial leaves a process, whatever its outcome.
    EXPECT_TRUE(eventually([&] { return workers_of(gpus_.root()).empty(); }, seconds(10)));
  }
  trial(const trial&) = delete;
  trial& operator=(const trial&) = delete;

  static gpushm::fake::fake_gpus_options two_gpus() {
    gpushm::fake::fake_gpus_options options;
    options.gpus = 2;
    return options;
  }
  [[nodiscard]] gpushm::broker_options broker_options() const {
    gpushm::broker_options options;
    options.socket_path = directory_ / "socket";
    options.domain = "trial";
    options.accept_fake_chunks = true;
    return options;
  }

  [[nodiscard]] child_process worker(const std::vector<std::string>& more = {},
                                     const variables& environment = {}) const {
    child_options options;
    options.argv = {gpushm_testing::own_program("gpushm"), "trial-worker"};
    options.argv.insert(options.argv.end(), more.begin(), more.end());
    options.environment = gpus_.environment();
    for (const auto& variable : environment) {
      std::erase_if(options.environment,
                    [&](const auto& known) { return known.first == variable.first; });
      options.environment.push_back(variable);
    }
    return child_process::start(options);
  }
  /// Another program instead of a worker.
  [[nodiscard]] static child_process script(const std::string& text) {
    child_options options;
    options.argv = {"/bin/sh", "-c", text};
    return child_process::start(options);
  }
  [[nodiscard]] trial_setup setup(way sharing_way) const {
    trial_setup made;
    made.how = sharing_way;
    made.exporter_device = gpus_.gpus().front().uuid;
    made.socket = broker_.socket_path();
    made.size_bytes = 300'001;  // not a multiple of a page or chunk
    return made;
  }
  [[nodiscard]] trial_outcome run(child_process& exporter,
                                  child_process& importer,
                                  way sharing_way) const {
    return run_trial(
        exporter, importer, setup(sharing_way), deadline_in(scaled_timeout(seconds(30))));
  }
  static void expect_works(const trial_outcome& outcome) {
    EXPECT_EQ(outcome.result, trial_result::works) << outcome.side << ": " << outcome.text;
    EXPECT_EQ(outcome.side + outcome.failure + outcome.text, "");
    EXPECT_GT(outcome.open_time.count(), 0);
  }
  static void expect_ends(const trial_outcome& outcome,
                          trial_result result,
                          const std::string& side,
                          const std::string& failure,
                          const std::string& text) {
    EXPECT_EQ(outcome.result, result);
    EXPECT_EQ(outcome.side, side);
    EXPECT_EQ(outcome.failure, failure);
    EXPECT_EQ(outcome.text, text);
  }
  static void stop(child_process& process) {
    process.close_input();
    const auto status = process.wait(deadline_in(scaled_timeout(seconds(10))));
    ASSERT_TRUE(status);
    EXPECT_EQ(*status, 0);
  }
  /// Whether namespaces can be created here: as root, or if user namespaces are permitted.
  [[nodiscard]] bool may_isolate() const {
    auto process = worker({"--own-namespaces"});
    process.write_line(R"({"way":"host","order":"hello"})");
    const auto line = process.read_line(deadline_in(scaled_timeout(seconds(10))));
    return line && nlohmann::json::parse(*line).value("event", "") == "ready";
  }
  /// libgpushm-ipc.so with libgpushm.so.1 beside it, as it is installed.
  [[nodiscard]] std::string ipc_library() const {
    std::filesystem::create_directory(directory_ / "ipc");
    for (const char* name : {"libgpushm-ipc.so", "libgpushm.so.1"}) {
      std::error_code exists;
      std::filesystem::create_symlink(
          gpushm_testing::own_library(name), directory_ / (std::string("ipc/") + name), exists);
    }
    return directory_ / "ipc/libgpushm-ipc.so";
  }
  /// A worker in a container of its own, as far as IPC is concerned.
  [[nodiscard]] child_process isolated_worker(bool has_library, bool has_domain) const {
    std::vector<std::string> more{"--own-namespaces", "--own-files"};
    if (has_library) {
      more.insert(more.end(), {"--ipc-library", ipc_library()});
    }
    if (has_domain) {
      more.insert(more.end(), {"--ipc-socket", broker_.socket_path()});
    }
    return worker(more);
  }
  [[nodiscard]] std::string why_not_isolated() const {
    if (gpushm::base::under_thread_sanitizer) {
      return "ThreadSanitizer runs a thread in each process, which uses a PID";
    }
    if (!may_isolate()) {
      return "cannot create namespaces here";
    }
    return gpus_.mounted() ? ""
                           : "the fake GPUs are in /dev/shm, which these processes do not share";
  }

  [[nodiscard]] bool all_free() const { return !gpus_.mounted() || gpus_.used_bytes(0) == 0; }

  gpushm_testing::temp_dir directory_{0755};
  gpushm::fake::fake_gpus gpus_;
  gpushm::broker broker_;
};

TEST_F(trial, every_way_works_between_two_processes) {
  auto exporter = worker();
  auto importer = worker();
  for (const way how : gpushm::inspect::all_ways) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    expect_works(outcome);
    EXPECT_NE(outcome.exporter_pid, outcome.importer_pid);
    EXPECT_GT(outcome.exporter_pid, exporter.pid());
  }
  EXPECT_TRUE(all_free());
  stop(exporter);
  stop(importer);
}

TEST_F(trial, each_way_can_be_tested_once) {
  auto exporter = worker();
  auto importer = worker();
  expect_works(run(exporter, importer, way::host));
  expect_ends(run(exporter, importer, way::host),
              trial_result::not_run,
              "exporter",
              "this way was already tested with this pair",
              "this way was already tested with this pair; its child ended with exit status 0");
  expect_works(run(exporter, importer, way::vmm));
}

TEST_F(trial, importer_may_use_another_gpu) {
  auto exporter = worker();
  auto importer = worker();
  for (const way how : gpu_ways) {
    SCOPED_TRACE(to_string(how));
    auto other = setup(how);
    other.importer_device = gpus_.gpus().at(1).uuid;
    expect_works(run_trial(exporter, importer, other, deadline_in(scaled_timeout(seconds(30)))));
  }
}

TEST_F(trial, equal_pids_break_only_raw_handles) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer runs a thread in each process, which uses a PID";
  }
  if (!may_isolate()) {
    GTEST_SKIP() << "cannot create namespaces here";
  }
  auto exporter = worker({"--own-namespaces"});
  auto importer = worker({"--own-namespaces"});
  for (const way how : gpushm::inspect::all_ways) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    EXPECT_EQ(outcome.exporter_pid, outcome.importer_pid);
    // The worker is PID 1.
    EXPECT_EQ(outcome.importer_pid, 64 + static_cast<int>(how));
    if (how == way::raw_legacy) {
      expect_ends(outcome,
                  trial_result::fails,
                  "importer",
                  "CUDA_ERROR_INVALID_CONTEXT (201)",
                  "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT (201)");
    } else {
      expect_works(outcome);
    }
  }
}

TEST_F(trial, spare_pids_make_pids_different) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer runs a thread in each process, which uses a PID";
  }
  if (!may_isolate()) {
    GTEST_SKIP() << "cannot create namespaces here";
  }
  auto exporter = worker({"--own-namespaces"});
  auto importer = worker({"--own-namespaces", "--spare-pids", "7"});
  const auto outcome = run(exporter, importer, way::raw_legacy);
  expect_works(outcome);
  EXPECT_EQ(outcome.importer_pid, outcome.exporter_pid + 7);
}

// ---- unchanged programs ----

TEST_F(trial, unchanged_programs_with_equal_pids_fail_without_library) {
  if (const auto reason = why_not_isolated(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  auto exporter = isolated_worker(false, false);
  auto importer = isolated_worker(false, false);
  for (const way how : {way::unmodified, way::unmodified_event}) {
    SCOPED_TRACE(to_string(how));
    expect_ends(run(exporter, importer, how),
                trial_result::fails,
                "importer",
                "CUDA_ERROR_INVALID_CONTEXT (201)",
                "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT (201)");
  }
  const auto outcome = run(exporter, importer, way::unmodified_descriptor);
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_EQ(outcome.side, "importer");
  EXPECT_THAT(outcome.text, HasSubstr("pidfd_getfd: Bad file descriptor"));
}

TEST_F(trial, unchanged_programs_share_with_library_in_one_domain) {
  if (const auto reason = why_not_isolated(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  auto exporter = isolated_worker(true, true);
  auto importer = isolated_worker(true, true);
  for (const way how : gpushm::inspect::ipc_ways) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    expect_works(outcome);
    EXPECT_EQ(outcome.exporter_pid, outcome.importer_pid);
  }
  // Registrations end without a wait for the broker, which holds a descriptor until then.
  EXPECT_TRUE(eventually([&] { return all_free(); }, seconds(30)));
  stop(exporter);
  stop(importer);
}

TEST_F(trial, unchanged_programs_share_memory_and_events_without_domain) {
  if (const auto reason = why_not_isolated(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  auto exporter = isolated_worker(true, false);
  auto importer = isolated_worker(true, false);
  for (const way how : {way::unmodified, way::unmodified_event}) {
    SCOPED_TRACE(to_string(how));
    expect_works(run(exporter, importer, how));
  }
  const auto outcome = run(exporter, importer, way::unmodified_descriptor);
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_THAT(outcome.text, HasSubstr("pidfd_getfd: Bad file descriptor"));
}

TEST_F(trial, importing_side_with_library_suffices_for_memory) {
  if (const auto reason = why_not_isolated(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  auto exporter = isolated_worker(false, false);
  auto importer = isolated_worker(true, true);
  expect_works(run(exporter, importer, way::unmodified));
  const auto event = run(exporter, importer, way::unmodified_event);
  EXPECT_EQ(event.result, trial_result::fails);
  EXPECT_THAT(event.text, HasSubstr("cuIpcOpenEventHandle"));
}

TEST_F(trial, measures_copies_if_requested) {
  auto exporter = worker();
  auto importer = worker();
  for (const way how : {way::raw_legacy, way::vmm, way::host}) {
    SCOPED_TRACE(to_string(how));
    auto measured = setup(how);
    measured.measure = true;
    const auto outcome =
        run_trial(exporter, importer, measured, deadline_in(scaled_timeout(seconds(30))));
    expect_works(outcome);
    EXPECT_EQ(outcome.bytes_per_second.has_value(), how != way::host);
    EXPECT_GT(outcome.bytes_per_second.value_or(1), 0);
  }
  expect_works(run(exporter, importer, way::legacy));
}

TEST_F(trial, library_that_cannot_be_loaded_is_named) {
  std::ofstream(directory_ / "libgpushm-ipc.so") << "no library";
  auto exporter = worker({"--ipc-library", directory_ / "libgpushm-ipc.so"});
  auto importer = worker();
  const auto outcome = run(exporter, importer, way::unmodified);
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_EQ(outcome.side, "exporter");
  EXPECT_THAT(outcome.text, HasSubstr("libgpushm-ipc.so was not loaded"));
}

// ---- missing devices ----

TEST_F(trial, importer_without_node_gets_measured_errors) {
  const std::string other = gpus_.make_dev_root("dev-of-importer", {1});
  auto exporter = worker();
  auto importer = worker({}, {{"GPUSHM_DEV_ROOT", other}});
  const std::string& uuid = gpus_.gpus().front().uuid;
  expect_ends(run(exporter, importer, way::raw_legacy),
              trial_result::fails,
              "importer",
              "CUDA_ERROR_INVALID_VALUE (1)",
              "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_VALUE (1)");
  for (const way how : {way::legacy, way::vmm, way::pool}) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    EXPECT_EQ(outcome.result, trial_result::fails);
    EXPECT_EQ(outcome.side, "importer");
    EXPECT_EQ(outcome.failure, "device_not_visible");
    EXPECT_THAT(outcome.text, HasSubstr("this process may not use " + uuid));
    EXPECT_THAT(outcome.text, HasSubstr("start the container or pod with this GPU too"));
  }
  expect_works(run(exporter, importer, way::host));
}

TEST_F(trial, importer_without_any_gpu_gets_measured_errors) {
  auto exporter = worker();
  auto importer = worker({}, {{"GPUSHM_DEV_ROOT", gpus_.make_dev_root("dev-of-importer", {})}});
  expect_ends(run(exporter, importer, way::raw_legacy),
              trial_result::fails,
              "importer",
              "CUDA_ERROR_NO_DEVICE (100)",
              "cuInit: no device: CUDA_ERROR_NO_DEVICE (100)");
  for (const way how : {way::legacy, way::vmm, way::pool}) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    EXPECT_EQ(outcome.result, trial_result::fails);
    EXPECT_EQ(outcome.side, "importer");
    EXPECT_EQ(outcome.failure, "device_not_visible") << outcome.text;
  }
}

TEST_F(trial, exporter_without_gpu_fails) {
  auto exporter = worker({}, {{"GPUSHM_DEV_ROOT", gpus_.make_dev_root("dev-of-exporter", {1})}});
  auto importer = worker();
  const auto raw = run(exporter, importer, way::raw_legacy);
  EXPECT_EQ(raw.result, trial_result::fails);
  EXPECT_EQ(raw.side, "exporter");
  EXPECT_EQ(raw.failure, "CUDA_ERROR_INVALID_DEVICE (101)");
  for (const way how : {way::legacy, way::vmm, way::pool}) {
    SCOPED_TRACE(to_string(how));
    const auto outcome = run(exporter, importer, how);
    EXPECT_EQ(outcome.result, trial_result::fails);
    EXPECT_EQ(outcome.side, "exporter");
    EXPECT_EQ(outcome.failure, "device_not_found");
    EXPECT_THAT(outcome.text, HasSubstr("find device \"" + gpus_.gpus().front().uuid + "\""));
  }
}

TEST_F(trial, missing_importer_gpu_is_reported) {
  auto exporter = worker();
  auto importer = worker();
  auto wrong = setup(way::vmm);
  wrong.importer_device = "7";
  const auto outcome =
      run_trial(exporter, importer, wrong, deadline_in(scaled_timeout(seconds(30))));
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_EQ(outcome.side, "importer");
  EXPECT_EQ(outcome.failure, "device_not_found");
  wrong.how = way::raw_legacy;
  const auto raw = run_trial(exporter, importer, wrong, deadline_in(scaled_timeout(seconds(30))));
  EXPECT_EQ(raw.side, "importer");
  EXPECT_EQ(raw.failure, "CUDA_ERROR_INVALID_DEVICE (101)");
}

TEST_F(trial, missing_broker_is_reported) {
  auto exporter = worker();
  auto importer = worker();
  auto wrong = setup(way::host);
  wrong.socket = directory_ / "no-broker";
  const auto outcome =
      run_trial(exporter, importer, wrong, deadline_in(scaled_timeout(seconds(30))));
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_EQ(outcome.side, "exporter");
  EXPECT_EQ(outcome.failure, "broker_unreachable");
}

TEST_F(trial, driver_failure_is_reported_verbatim) {
  auto exporter = worker({}, {{"GPUSHM_FAKE_FAIL", "cuMemAlloc_v2:*=2,cuMemCreate:*=2"}});
  auto importer = worker();
  const auto raw = run(exporter, importer, way::raw_legacy);
  EXPECT_EQ(raw.side, "exporter");
  EXPECT_EQ(raw.failure, "CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(raw.text, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
  const auto vmm = run(exporter, importer, way::vmm);
  EXPECT_EQ(vmm.side, "exporter");
  EXPECT_EQ(vmm.failure, "out_of_memory");
}

// ---- faulty sides ----

TEST_F(trial, missing_reply_is_wrong_data) {
  auto exporter = worker();
  auto importer = script(R"(while read -r line; do case "$line" in
*'"order":"hello"'*) echo '{"way":"host","event":"ready","pid":7}';;
*'"order":"open"'*) echo '{"way":"host","event":"answered","pid":7,"open_ns":5}';;
*'"order":"end"'*) echo '{"way":"host","event":"ended","crashed":false,"status":"exit status 0"}';;
esac; done)");
  const auto outcome = run(exporter, importer, way::host);
  EXPECT_EQ(outcome.result, trial_result::fails);
  EXPECT_EQ(outcome.side, "exporter");
  EXPECT_EQ(outcome.failure, "wrong data");
  EXPECT_THAT(outcome.text,
              ::testing::MatchesRegex("29[0-9]+ of 300001 bytes are not what the other side wrote, "
                                      "the first at offset [0-9]"));
  EXPECT_EQ(outcome.importer_pid, 7);
  EXPECT_EQ(outcome.open_time.count(), 5);
}

TEST_F(trial, other_program_output_is_an_error) {
  auto exporter = worker();
  auto importer = script("read -r line; echo Segmentation fault; read -r line");
  try {
    static_cast<void>(run(exporter, importer, way::host));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::protocol_error);
    EXPECT_STREQ(failure.what(),
                 "try sharing \"importer\": unexpected message: Segmentation fault");
  }
}

TEST_F(trial, silent_program_is_an_error_at_the_deadline) {
  auto exporter = worker();
  auto importer = script("read -r line; read -r line");
  try {
    static_cast<void>(run_trial(exporter,
                                importer,
                                setup(way::host),
                                deadline_in(scaled_timeout(std::chrono::milliseconds(500)))));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::timed_out);
    EXPECT_EQ(failure.cause(), "no output before the deadline");
  }
}

// ---- deaths ----

TEST_F(trial, crash_affects_only_its_way) {
  auto exporter = worker();
  auto importer = worker({}, {{"GPUSHM_FAKE_FAIL", "cuMemPoolImportFromShareableHandle:1=crash"}});
  const auto outcome = run(exporter, importer, way::pool);
  expect_ends(outcome,
              trial_result::crashes,
              "importer",
              "killed by signal 11 (Segmentation fault)",
              "the importer was killed by signal 11 (Segmentation fault) in \"open\"");
  expect_works(run(exporter, importer, way::host));
  expect_works(run(exporter, importer, way::vmm));
}

TEST_F(trial, hanging_side_is_killed_and_reported) {
  auto exporter = worker();
  auto importer = worker();
  // The stopped child of the exporter does not reply, like one that hangs in the driver.
  exporter.write_line(R"({"way":"host","order":"hello"})");
  const auto line = exporter.read_line(deadline_in(scaled_timeout(seconds(10))));
  ASSERT_TRUE(line);
  const pid_t pid = nlohmann::json::parse(*line).at("pid").get<pid_t>();
  ASSERT_EQ(gpushm::base::signal_process(pid, SIGSTOP), 0);
  const auto outcome =
      run_trial(exporter, importer, setup(way::host), deadline_in(std::chrono::milliseconds(500)));
  expect_ends(outcome,
              trial_result::fails,
              "exporter",
              "timed_out",
              "no reply to \"export\" in time: its process was killed");
  EXPECT_NE(gpushm::base::signal_process(pid, 0), 0);
  expect_works(run(exporter, importer, way::vmm));
}

TEST_F(trial, dead_program_is_an_error_with_its_status) {
  auto exporter = worker();
  auto importer = worker();
  expect_works(run(exporter, importer, way::host));
  gpushm::base::signal_process(importer.pid(), SIGKILL);
  try {
    static_cast<void>(run(exporter, importer, way::vmm));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::peer_died);
    EXPECT_STREQ(failure.what(),
                 "try sharing \"importer\": its program ended (killed by signal 9 (Killed)) before "
                 "replying to \"hello\"");
  }
}

TEST_F(trial, end_of_input_leaves_no_worker) {
  auto exporter = worker();
  auto importer = worker({"--own-namespaces"});
  static_cast<void>(run(exporter, importer, way::host));
  EXPECT_GE(workers_of(gpus_.root()).size(), 8U);
  exporter.close_input();
  importer.close_input();
  EXPECT_TRUE(eventually([&] { return workers_of(gpus_.root()).empty(); }, seconds(10)));
  ASSERT_TRUE(exporter.wait(deadline_in(seconds(10))));
  ASSERT_TRUE(importer.wait(deadline_in(seconds(10))));
}

TEST_F(trial, sigkill_of_driver_leaves_no_worker) {
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("trial_driver"),
                  gpushm_testing::own_program("gpushm"),
                  broker_.socket_path()};
  if (may_isolate()) {
    options.argv.emplace_back("--own-namespaces");
  }
  options.env = gpus_.environment();
  auto driver = gpushm_testing::child::start(options);
  driver.wait_for_line("^exporter waits$", seconds(20));
  // Two programs with five children each, one of which has exited; programs in separate namespaces
  // also have a process outside.
  EXPECT_GE(workers_of(gpus_.root()).size(), 11U);
  driver.kill(SIGKILL);
  EXPECT_EQ(driver.wait_exit(seconds(20)), gpushm_testing::killed_by(SIGKILL));
  EXPECT_TRUE(eventually([&] { return workers_of(gpus_.root()).empty(); }, seconds(10)));
  EXPECT_TRUE(eventually([&] { return all_free(); }, seconds(10)));
}

TEST_F(trial, sigterm_terminates_worker_and_children) {
  for (const bool isolated : {false, true}) {
    if (isolated && !may_isolate()) {
      continue;
    }
    auto process = isolated ? worker({"--own-namespaces"}) : worker();
    process.write_line(R"({"way":"host","order":"hello"})");
    ASSERT_TRUE(process.read_line(deadline_in(scaled_timeout(seconds(10)))));
    gpushm::base::signal_process(process.pid(), SIGTERM);
    ASSERT_TRUE(process.wait(deadline_in(scaled_timeout(seconds(10)))));
    EXPECT_TRUE(eventually([&] { return workers_of(gpus_.root()).empty(); }, seconds(10)));
  }
}

}  // namespace
}  // namespace gpushm_tests
