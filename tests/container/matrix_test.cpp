// SPDX-License-Identifier: Apache-2.0
// `gpushm matrix` with real containers and two, one or no fake GPUs: gpushm's predictions are
// correct, and nothing is left however the command ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/container/support.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using gpushm_testing::run_result;
using gpushm_testing::spawn_options;
using gpushm_testing::stream;
using gpushm_testing::temp_dir;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

/// The cgroups of containers that the process `pid` created.
std::vector<std::string> cgroups_of(pid_t pid) {
  return gpushm_testing::cgroups_named("gpushm-matrix-" + std::to_string(pid) + "-");
}

class matrix : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
  }

  /// `gpushm matrix ARGUMENTS` with the GPUs of `fake`.
  [[nodiscard]] spawn_options command(std::vector<std::string> arguments,
                                      const std::optional<gpushm::fake::fake_gpus>& fake) const {
    spawn_options options;
    options.argv = {gpushm_testing::own_program("gpushm"), "matrix"};
    if (fake) {
      options.env = fake->environment();
      options.argv.insert(options.argv.end(),
                          {"--accept-fake-chunks",
                           "--bind",
                           fake->root(),
                           "--env",
                           "GPUSHM_FAKE_GPU_ROOT",
                           "--env",
                           "GPUSHM_PROC_ROOT",
                           "--env",
                           "LD_LIBRARY_PATH"});
    }
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env.emplace_back("TMPDIR", temporary_.path());
    return options;
  }

  [[nodiscard]] run_result run(std::vector<std::string> arguments,
                               const std::optional<gpushm::fake::fake_gpus>& fake) const {
    return gpushm_testing::run_program(command(std::move(arguments), fake),
                                       gpushm_testing::scaled_timeout(seconds(200)));
  }

  /// Expects no directory of a bundle or the broker, and no mount of one.
  void expect_nothing_left() const {
    const auto empty = [&] { return fs::is_empty(temporary_.path()); };
    EXPECT_TRUE(eventually(empty, seconds(10))) << [this] {
      std::string left;
      for (const auto& each : fs::recursive_directory_iterator(temporary_.path())) {
        left += each.path().string() + '\n';
      }
      return left;
    }();
    std::stringstream mounts;
    mounts << std::ifstream("/proc/self/mountinfo").rdbuf();
    EXPECT_THAT(mounts.str(), ::testing::Not(HasSubstr(temporary_.path())));
  }
  static void expect_no_container_of(pid_t pid) {
    EXPECT_TRUE(eventually([&] { return cgroups_of(pid).empty(); }, seconds(10)))
        << ::testing::PrintToString(cgroups_of(pid));
  }

  /// Starts the command and waits until its first container exists.
  [[nodiscard]] static child started(const spawn_options& options) {
    auto process = child::start(options);
    const auto pid = process.pid();
    EXPECT_TRUE(eventually([&] { return !cgroups_of(pid).empty(); }, seconds(30)));
    return process;
  }

  [[nodiscard]] static std::optional<gpushm::fake::fake_gpus> no_fake() { return std::nullopt; }

  temp_dir temporary_;
};

json parsed(const run_result& done) {
  auto document = json::parse(done.out, nullptr, false);
  EXPECT_TRUE(document.is_object()) << done.out << done.err;
  return document;
}

TEST_F(matrix, predicts_every_cell) {
  std::optional<gpushm::fake::fake_gpus> fake;
  gpushm::fake::fake_gpus_options two;
  two.gpus = 2;
  fake.emplace(two);
  // As they are installed: beside each other.
  const temp_dir libraries(0755);
  for (const char* name : {"libgpushm-ipc.so", "libgpushm.so.1"}) {
    fs::create_symlink(gpushm_testing::own_library(name), libraries / name);
  }
  auto process =
      child::start(command({"--json", "--ipc-library", libraries / "libgpushm-ipc.so"}, fake));
  const auto pid = process.pid();
  EXPECT_EQ(process.wait_exit(seconds(250)), exited(0)) << process.text(stream::err);
  EXPECT_EQ(process.text(stream::err), "");
  const auto document = json::parse(process.text(stream::out), nullptr, false);
  ASSERT_TRUE(document.is_object());

  EXPECT_EQ(document["summary"]["ran"], 256);
  EXPECT_EQ(document["summary"]["as_predicted"], 256);
  EXPECT_EQ(document["summary"]["not_run"], 0);
  EXPECT_EQ(document["summary"]["not_applicable"], 256);
  EXPECT_LT(document["summary"]["seconds"].get<double>(), 250);
  ASSERT_EQ(document["rows"].size(), 64U);
  int applicable = 0;
  std::set<std::string> raw_results;
  for (const auto& row : document["rows"]) {
    const auto& cells = row["cells"];
    if (cells["host"]["result"] == "not applicable") {
      continue;
    }
    ++applicable;
    const bool visible = row["gpus"] == "same set" || row["privileged"];
    const bool equal = row["pids"] == "equal";
    const auto where = row["number"].dump() + ": " + cells.dump(2);
    for (const char* way : {"cuda-ipc", "cuda-vmm", "cuda-pool"}) {
      EXPECT_EQ(cells[way]["result"], visible ? "works" : "fails") << way << " in row " << where;
      if (!visible) {
        // The driver itself would have crashed for the pool; the later columns still ran.
        EXPECT_EQ(cells[way]["failure"], "device_not_visible") << where;
        EXPECT_EQ(cells[way]["side"], "importer") << where;
      }
    }
    EXPECT_EQ(cells["host"]["result"], "works") << where;
    // Programs that do not know gpushm share wherever the importer may open the GPU.
    for (const char* way : {"unmodified", "unmodified-event", "unmodified-fd"}) {
      EXPECT_EQ(cells[way]["result"], visible ? "works" : "fails") << way << " in row " << where;
    }
    for (const auto& [way, cell] : cells.items()) {
      EXPECT_EQ(cell["exporter_pid"] == cell["importer_pid"], equal) << way << where;
    }
    const auto raw = cells["raw-legacy"]["failure"];
    raw_results.insert(raw.is_null() ? "works" : raw.get<std::string>());
    EXPECT_EQ(raw.is_null(), visible && !equal) << where;
  }
  EXPECT_EQ(applicable, 32);
  EXPECT_THAT(raw_results,
              ::testing::ElementsAre(
                  "CUDA_ERROR_INVALID_CONTEXT (201)", "CUDA_ERROR_INVALID_VALUE (1)", "works"));
  std::size_t published = 0;
  for (const auto& table : document["published"]) {
    for (const auto& row : table["rows"]) {
      ++published;
      EXPECT_EQ(row["differs"], false) << table["id"] << " " << row;
    }
  }
  EXPECT_EQ(published, 25U);

  expect_nothing_left();
  expect_no_container_of(pid);
  if (fake->mounted()) {
    EXPECT_EQ(fake->used_bytes(0), 0U);
    EXPECT_EQ(fake->used_bytes(1), 0U);
  }
}

TEST_F(matrix, one_gpu_marks_rows_that_need_two) {
  std::optional<gpushm::fake::fake_gpus> fake;
  fake.emplace();
  const auto done = run({"--json", "--backends", "cuda-vmm,host"}, fake);
  EXPECT_EQ(done.status, exited(0)) << done.err;
  const auto document = parsed(done);
  EXPECT_EQ(document["backends"], json::parse(R"(["cuda-vmm","host"])"));
  EXPECT_EQ(document["summary"]["ran"], 32);
  EXPECT_EQ(document["summary"]["as_predicted"], 32);
  EXPECT_EQ(document["summary"]["not_run"], 32);
  for (const auto& row : document["rows"]) {
    const auto& cell = row["cells"]["cuda-vmm"];
    if (cell["result"] == "not run") {
      EXPECT_EQ(row["gpus"], "one each");
      EXPECT_EQ(cell["why"], "needs two GPUs");
    } else if (cell["result"] != "not applicable") {
      EXPECT_EQ(row["gpus"], "same set");
      EXPECT_EQ(cell["result"], "works");
    }
  }
  expect_nothing_left();
}

TEST_F(matrix, without_gpu_runs_host_column_only) {
  std::optional<gpushm::fake::fake_gpus> fake;
  gpushm::fake::fake_gpus_options none;
  none.gpus = 0;
  fake.emplace(none);
  const auto done = run({"--backends", "cuda-ipc,host"}, fake);
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_THAT(done.out, ::testing::StartsWith("no GPU, "));
  EXPECT_THAT(done.out, HasSubstr(" no GPU.\n"));
  EXPECT_THAT(done.out,
              HasSubstr("\n32 cells ran, 32 as predicted, 32 not run, 64 not applicable"));
  expect_nothing_left();
}

TEST_F(matrix, wrong_prediction_is_reported) {
  std::optional<gpushm::fake::fake_gpus> fake;
  gpushm::fake::fake_gpus_options two;
  two.gpus = 2;
  fake.emplace(two);
  auto options = command({"--backends", "raw-legacy,cuda-vmm", "--env", "GPUSHM_FAKE_FAIL"}, fake);
  options.env.emplace_back("GPUSHM_FAKE_FAIL", "cuMemCreate:*=999");
  const auto done =
      gpushm_testing::run_program(options, gpushm_testing::scaled_timeout(seconds(200)));
  EXPECT_EQ(done.status, exited(1)) << done.err;
  EXPECT_THAT(
      done.err,
      ::testing::StartsWith("gpushm: not as predicted: 32 cells, the first is row 2, "
                            "cuda-vmm: predicted \"works\" because descriptors contain no "
                            "PID; the importer may open the GPU. Actual result: fails (exporter, "
                            "driver_error): "));
  EXPECT_THAT(done.out, HasSubstr("!fails "));
  EXPECT_THAT(done.out, HasSubstr("\n64 cells ran, 32 as predicted, 0 not run"));
  expect_nothing_left();
}

TEST_F(matrix, interrupt_shuts_down_cleanly) {
  auto process = started(command({"--json", "--backends", "host"}, no_fake()));
  const auto pid = process.pid();
  process.kill(SIGINT);
  EXPECT_EQ(process.wait_exit(seconds(30)), exited(1)) << process.text(stream::err);
  EXPECT_EQ(process.text(stream::err), "gpushm: not everything was run: interrupted by a signal\n");
  const auto document = json::parse(process.text(stream::out), nullptr, false);
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["stopped"], "interrupted by a signal");
  EXPECT_EQ(document["rows"].size(), 64U);
  EXPECT_EQ(document["rows"][63]["cells"]["host"]["result"], "not run");
  EXPECT_EQ(document["rows"][63]["cells"]["host"]["why"], "interrupted by a signal");
  expect_nothing_left();
  expect_no_container_of(pid);
}

TEST_F(matrix, timeout_shuts_down_cleanly) {
  const auto done = run({"--timeout", "1s", "--backends", "host"}, no_fake());
  EXPECT_EQ(done.status, exited(1)) << done.err;
  EXPECT_EQ(done.err, "gpushm: not everything was run: the --timeout expired\n");
  EXPECT_THAT(done.out, HasSubstr("the --timeout expired.\n"));
  EXPECT_THAT(done.out, HasSubstr("\nNot everything was run: the --timeout expired.\n"));
  expect_nothing_left();
}

TEST_F(matrix, killed_command_leaves_nothing) {
  auto process = started(command({"--backends", "host"}, no_fake()));
  const auto pid = process.pid();
  process.kill(SIGKILL);
  EXPECT_EQ(process.wait_exit(seconds(30)), killed_by(SIGKILL));
  expect_no_container_of(pid);
  expect_nothing_left();
}

TEST_F(matrix, runs_with_crun) {
  const auto crun = gpushm_testing::find_in_path("crun");
  if (!crun) {
    GTEST_SKIP() << "no crun in $PATH";
  }
  const auto done = run({"--runtime", "crun", "--backends", "host"}, no_fake());
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_THAT(done.out, HasSubstr("\n32 cells ran, 32 as predicted, 0 not run"));
  expect_nothing_left();
}

struct refusal {
  const char* name;
  std::vector<std::string> arguments;
  const char* text;
};
void PrintTo(const refusal& chosen, std::ostream* to) {
  *to << chosen.name;
}
class matrix_refuses : public matrix, public ::testing::WithParamInterface<refusal> {};

TEST_P(matrix_refuses, before_creating_anything) {
  const auto done = run(GetParam().arguments, no_fake());
  EXPECT_EQ(done.status, exited(1));
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(done.err, std::string("gpushm: run matrix ") + GetParam().text + "\n");
  EXPECT_TRUE(fs::is_empty(temporary_.path()));
}

INSTANTIATE_TEST_SUITE_P(
    ,
    matrix_refuses,
    ::testing::Values(
        refusal{"runtime_missing",
                {"--runtime", "no-such-runtime"},
                "\"no-such-runtime\": no such container runtime on this machine (install "
                "it (apt-get install runc), or choose another: --runtime runc, crun or a path)"},
        refusal{"path_missing",
                {"--bind", "/no/such/path"},
                "\"/no/such/path\": the path for the containers does not exist (pass an "
                "existing path to --bind)"},
        refusal{"variable_missing",
                {"--env", "GPUSHM_NO_SUCH_VARIABLE"},
                "\"GPUSHM_NO_SUCH_VARIABLE\": this environment variable is not set (set it, or "
                "omit its --env)"}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

TEST_F(matrix, missing_gpu_is_refused) {
  std::optional<gpushm::fake::fake_gpus> fake;
  fake.emplace();
  const auto done = run({"--devices", "7"}, fake);
  EXPECT_EQ(done.status, exited(1));
  EXPECT_THAT(done.err, ::testing::StartsWith("gpushm: "));
  EXPECT_THAT(done.err, HasSubstr("\"7\""));
  EXPECT_THAT(done.err, HasSubstr(fake->gpus().front().uuid));
  EXPECT_TRUE(fs::is_empty(temporary_.path()));
}

TEST_F(matrix, requires_root) {
  auto options = command({}, no_fake());
  options.uid = 1000;
  options.gid = 1000;
  const auto done = gpushm_testing::run_program(options);
  EXPECT_EQ(done.status, exited(1));
  EXPECT_EQ(done.err,
            "gpushm: run matrix: creating containers in all these settings requires root (run it "
            "with sudo)\n");
}

}  // namespace
}  // namespace gpushm_tests
