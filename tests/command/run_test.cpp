// SPDX-License-Identifier: Apache-2.0
// `gpushm run`, and what `gpushm cdi ipc` requires of the libraries and the hook program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/files/sanitizers.hpp"
#include "containers/elf/loading.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::exited;
using gpushm_testing::own_library;
using gpushm_testing::own_program;
using gpushm_testing::run_result;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class run_command : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(libraries());
    for (const char* const name : {"libgpushm-ipc.so", "libgpushm.so.1"}) {
      fs::copy_file(own_library("libpreload_standin.so"), libraries() + "/" + name);
    }
  }
  [[nodiscard]] std::string libraries() const { return cli_.directory() / "ipc"; }
  [[nodiscard]] std::string library() const { return libraries() + "/libgpushm-ipc.so"; }
  [[nodiscard]] std::string file(const std::string& name) const { return cli_.directory() / name; }

  [[nodiscard]] run_result run(std::vector<std::string> words,
                               const std::string& preloaded = {}) const {
    words.insert(words.begin(), {"run", "--libraries", libraries()});
    auto command = cli_.command(words);
    if (!preloaded.empty()) {
      command.env.emplace_back("LD_PRELOAD", preloaded);
    }
    return gpushm_testing::run_program(command);
  }
  void expect_refused(const std::string& program, const std::string& rest) const {
    const auto result = run({"--", program});
    EXPECT_EQ(result.status, exited(1));
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "gpushm: run with CUDA IPC \"" + program + "\": " + rest + "\n");
  }
  void make_executable(const std::string& path, mode_t mode = 0755) const {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }

  cli cli_;
  const std::string probe_ = own_program("preload_probe");
};

TEST_F(run_command, program_has_library_and_domain) {
  const auto result = run({"--domain", "team", "--", probe_, "cuIpcOpenMemHandle_v2"});
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_THAT(result.out,
              StartsWith("cuIpcOpenMemHandle_v2 " + library() + "\nLD_PRELOAD=" + library() +
                         "\nGPUSHM_IPC_DOMAIN=team\n"));
  EXPECT_EQ(result.err, "");
}

TEST_F(run_command, other_preloaded_libraries_stay_before_it) {
  if (gpushm::base::under_sanitizer) {
    GTEST_SKIP() << "a library with a sanitizer cannot be preloaded before its run-time library";
  }
  const std::string other = own_library("libpreload_dlsym.so");
  const auto result = run({probe_, "cuMemAlloc_v2", "cuIpcOpenMemHandle_v2"}, other);
  EXPECT_THAT(result.out,
              StartsWith("cuMemAlloc_v2 " + other + "\ncuIpcOpenMemHandle_v2 " + library() +
                         "\nLD_PRELOAD=" + other + ":" + library() + "\n"))
      << result.err;
  const auto again = run({probe_}, library() + " " + other);
  EXPECT_THAT(again.out, StartsWith("LD_PRELOAD=" + library() + " " + other + "\n"));
}

TEST_F(run_command, socket_replaces_domain) {
  auto command =
      cli_.command({"run", "--libraries", libraries(), "--socket", "/d/socket", "--", probe_});
  command.env.emplace_back("GPUSHM_IPC_DOMAIN", "other");
  const auto result = gpushm_testing::run_program(command);
  EXPECT_THAT(result.out, HasSubstr("GPUSHM_IPC_DOMAIN=(unset)\nGPUSHM_SOCKET=/d/socket\n"))
      << result.err;
  EXPECT_EQ(run({"--socket", "/d", "--domain", "d", "--", probe_}).status, exited(2));
}

TEST_F(run_command, program_is_found_in_path_with_its_options_and_status) {
  const auto result = run({"sh", "-c", "echo \"$0 $1\"; exit 7", "-x", "y"});
  EXPECT_EQ(result.status, exited(7)) << result.err;
  EXPECT_EQ(result.out, "-x y\n");
  EXPECT_EQ(run({"--", "sh", "-c", "kill -TERM $$"}).status, gpushm_testing::killed_by(SIGTERM));
  const auto missing = run({"--", "no-such-program"});
  EXPECT_EQ(missing.err,
            "gpushm: run with CUDA IPC \"no-such-program\": no such program in $PATH\n");
  EXPECT_EQ(run({}).status, exited(2));
}

TEST_F(run_command, script_runs_with_its_interpreter) {
  std::ofstream(file("script")) << "#! /bin/sh\n" << probe_ << " cuIpcOpenMemHandle_v2\n";
  make_executable(file("script"));
  EXPECT_THAT(run({"--", file("script")}).out,
              StartsWith("cuIpcOpenMemHandle_v2 " + library() + "\n"));
}

// ---- programs that would ignore the library ----

TEST_F(run_command, static_program_is_refused) {
  const std::string program = own_program("gpushm-cdi-hook");
  if (gpushm::elf::read_loading(program).value().interpreter.empty()) {
    expect_refused(program,
                   "it is a static program, which loads no libraries (link it dynamically, or let "
                   "it use gpushm's own interface)");
  }
}

TEST_F(run_command, program_of_musl_is_refused) {
  std::ifstream from(probe_);
  std::string bytes{std::istreambuf_iterator<char>(from), {}};
  const std::string loader = gpushm::elf::read_loading(probe_).value().interpreter;
  std::string other = "/lib/ld-musl.so.1";
  ASSERT_LE(other.size(), loader.size());
  other.resize(loader.size(), '\0');
  bytes.replace(bytes.find(loader), loader.size(), other);
  std::ofstream(file("musl")) << bytes;
  make_executable(file("musl"));
  expect_refused(file("musl"),
                 "its loader is ld-musl.so.1, not that of glibc (use a program or an image with "
                 "glibc 2.28 or later)");
  // A script of such an interpreter as well.
  std::ofstream(file("script")) << "#!" << file("musl") << "\n";
  make_executable(file("script"));
  EXPECT_THAT(run({"--", file("script")}).err, HasSubstr("its loader is ld-musl.so.1"));
}

TEST_F(run_command, program_of_another_architecture_is_refused) {
  std::ofstream(file("other")) << elf_stub("", 32);
  make_executable(file("other"));
  expect_refused(file("other"), "it is a program of another architecture");
}

TEST_F(run_command, program_with_other_rights_is_refused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can give a file to another user";
  }
  fs::copy_file(probe_, file("setuid"));
  ASSERT_EQ(::chown(file("setuid").c_str(), 65534, 0), 0);
  make_executable(file("setuid"), 04755);
  expect_refused(file("setuid"),
                 "it is a set-uid or set-gid program, for which the loader ignores LD_PRELOAD");
}

// ---- the libraries ----

TEST_F(run_command, missing_library_is_reported) {
  fs::remove(libraries() + "/libgpushm.so.1");
  const std::string rest =
      "\": no such file, or not a regular one (install gpushm (lib/gpushm/ipc), or name the "
      "directory: --libraries DIR)\n";
  EXPECT_EQ(run({"--", probe_}).err,
            "gpushm: use the libraries for CUDA IPC \"" + libraries() + "/libgpushm.so.1" + rest);
  put_link(libraries() + "/libgpushm.so.1", library());
  EXPECT_EQ(run({"--", probe_}).err,
            "gpushm: use the libraries for CUDA IPC \"" + libraries() + "/libgpushm.so.1" + rest);
}

TEST_F(run_command, library_that_others_can_replace_is_refused) {
  make_executable(library(), 0777);
  EXPECT_EQ(run({"--", probe_}).err,
            "gpushm: use the libraries for CUDA IPC \"" + library() +
                "\": programs of other users would load it, and " + library() +
                " is writable by all users (install it where only root can write, and name the "
                "directory: --libraries DIR)\n");
}

TEST_F(run_command, cdi_document_needs_safe_files) {
  fs::create_directories(file("d/default"));
  const auto describe = [&](const std::string& hook) {
    return gpushm_testing::run_program(cli_.command(
        {"cdi", "ipc", "--directory", file("d"), "--libraries", libraries(), "--hook-path", hook}));
  };
  fs::copy_file(own_program("gpushm-cdi-hook"), file("gpushm-cdi-hook"));
  const auto written = describe(file("gpushm-cdi-hook"));
  EXPECT_EQ(written.status, exited(0)) << written.err;
  EXPECT_THAT(written.out, HasSubstr("kind: gpushm.dev/ipc"));
  EXPECT_THAT(written.out, HasSubstr("- GPUSHM_IPC_DOMAIN=default"));
  EXPECT_THAT(written.out, HasSubstr("hostPath: " + libraries()));
  make_executable(file("gpushm-cdi-hook"), 0777);
  EXPECT_THAT(describe(file("gpushm-cdi-hook")).err,
              HasSubstr("engines would run it as root, and " + file("gpushm-cdi-hook") +
                        " is writable by all users"));
  EXPECT_THAT(describe("/nonexistent").err, HasSubstr("it is not a file of this machine"));
  // Without --ipc, a share device has no library.
  EXPECT_EQ(gpushm_testing::run_program(
                cli_.command({"cdi", "share", "--directory", file("d"), "--libraries", "/x"}))
                .status,
            exited(2));
}

}  // namespace
}  // namespace gpushm_tests
