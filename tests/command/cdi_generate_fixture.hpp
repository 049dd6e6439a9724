// SPDX-License-Identifier: Apache-2.0
#pragma once

// The command on a driver tree with GPUs of the fake NVML.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "containers/cdi/document/parse.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;
namespace cdi = gpushm::cdi;

inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class cdi_generate : public ::testing::Test {
 protected:
  void SetUp() override {
    if (driver_tree_names().empty()) {
      GTEST_SKIP() << "the source tree with the drivers is missing";
    }
    if (!can_make_nodes(cli_.directory().path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
  }

  void make(const std::string& tree, const std::vector<recorded_gpu>& gpus) {
    driver_ = make_driver_tree(tree, cli_.directory() / "driver");
    gpus_.emplace(cli_.directory() / "gpus",
                  gpus,
                  driver_.module_version,
                  driver_.own_dev ? driver_.root + "/dev" : std::string());
  }

  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> words) const {
    words.insert(words.begin(), "cdi");
    words.insert(words.end(), {"--driver-root", driver_.root, "--hook-path", "/usr/bin/gpushm"});
    auto options = cli_.command(words);
    for (const auto& each : gpus_->environment()) {
      options.env.push_back(each);
    }
    return options;
  }
  [[nodiscard]] gpushm_testing::run_result run(std::vector<std::string> words) const {
    return gpushm_testing::run_program(command(std::move(words)), std::chrono::seconds(60));
  }
  [[nodiscard]] gpushm_testing::run_result generate(std::vector<std::string> words = {}) const {
    words.insert(words.begin(), "generate");
    return run(std::move(words));
  }
  static cdi::document document_of(const gpushm_testing::run_result& result) {
    EXPECT_EQ(result.status, gpushm_testing::exited(0)) << result.err;
    cdi::parsed read = cdi::parse(result.out, "stdout");
    for (const gpushm::yaml::problem& each : read.problems) {
      ADD_FAILURE() << to_string(each);
    }
    return std::move(read.content);
  }
  static std::vector<std::string> names(const cdi::document& document) {
    std::vector<std::string> all;
    for (const cdi::device& each : document.devices) {
      all.push_back(each.name);
    }
    return all;
  }
  [[nodiscard]] std::string spec(const std::string& name) const {
    return cli_.directory() / ("cdi/" + name);
  }

  /// Starts `refresh --watch` of the file `spec("nvidia.yaml")`.
  [[nodiscard]] gpushm_testing::child watch(std::vector<std::string> more = {}) const {
    std::vector<std::string> words{
        "refresh", "--watch", "--interval", "50ms", "--output", spec("nvidia.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return gpushm_testing::child::start(command(std::move(words)));
  }

  cli cli_;
  driver_tree driver_;
  std::optional<gpu_tree> gpus_;
};

}  // namespace gpushm_tests
