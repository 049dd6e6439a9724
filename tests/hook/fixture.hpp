// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/broker_process/cli.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"

namespace gpushm_tests {

inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The command, and the program with only the hooks.
class cdi_hook : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root());
    put_file(cli_.directory() / "outside/secret", "secret");
    put_file(cli_.directory() / "bundle/config.json",
             nlohmann::json{{"ociVersion", "1.0.2"}, {"root", {{"path", "rootfs"}}}}.dump());
    put_file(state(),
             nlohmann::json{{"ociVersion", "1.0.2"},
                            {"id", "c"},
                            {"status", "creating"},
                            {"pid", 1},
                            {"bundle", cli_.directory() / "bundle"}}
                 .dump());
  }

  [[nodiscard]] std::string root() const { return cli_.directory() / "bundle/rootfs"; }
  [[nodiscard]] std::string state() const { return cli_.directory() / "state.json"; }
  [[nodiscard]] std::string inside(const std::string& path) const { return root() + path; }
  [[nodiscard]] std::string outside() const { return cli_.directory() / "outside"; }

  /// Runs `script` instead of only the hook: "$@" is the hook with its arguments.
  [[nodiscard]] gpushm_testing::run_result run(std::vector<std::string> arguments,
                                               const std::string& script = "exec \"$@\"",
                                               bool own_mounts = false) const {
    const std::string program = GetParam();
    if (program == "gpushm") {
      arguments.insert(arguments.begin(), {"cdi", "hook"});
    }
    auto command = cli_.command(arguments);
    command.argv.front() = gpushm_testing::own_program(program);
    std::vector<std::string> shell{
        "/bin/sh", "-c", "state=$1; shift; exec < \"$state\"; " + script, "sh", state()};
    if (own_mounts) {
      shell.insert(shell.begin(), {"unshare", "--mount", "--propagation", "private"});
    }
    shell.insert(shell.end(), command.argv.begin(), command.argv.end());
    command.argv = shell;
    return gpushm_testing::run_program(command, std::chrono::seconds(60));
  }
  void expect_outside_untouched() const {
    EXPECT_EQ(std::distance(std::filesystem::recursive_directory_iterator(outside()), {}), 1);
    EXPECT_EQ(content_of(outside() + "/secret"), "secret");
  }
  [[nodiscard]] static bool can_mount() {
    return ::geteuid() == 0 && gpushm_testing::find_in_path("unshare") &&
           gpushm_testing::run_program({.argv = {"unshare", "--mount", "true"}}).status ==
               gpushm_testing::exited(0);
  }

  cli cli_;
};

[[nodiscard]] inline std::string name_of_hook_program(
    const ::testing::TestParamInfo<const char*>& info) {
  return info.param == std::string("gpushm") ? "the_command" : "the_program";
}

}  // namespace gpushm_tests
