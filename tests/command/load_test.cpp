// SPDX-License-Identifier: Apache-2.0
// `gpushm load`: what a user sees, also with wrong input and in the wrong order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "testing/broker_process/cli.hpp"
#include "testing/fake_driver/fake_gpus.hpp"
#include "testing/process/deadline.hpp"
#include "tests/weights/sample_model.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

class load_cli : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string("host")) {
      fake_.emplace();
    }
    broker_.emplace(child::start(command({"serve", "--accept-fake-chunks"})));
    broker_->wait_for_line("^gpushm: serving domain", seconds(30));
  }
  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> arguments) const {
    auto options = cli_.command(std::move(arguments));
    if (fake_) {
      for (const auto& each : fake_->environment()) {
        options.env.push_back(each);
      }
    }
    return options;
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    return gpushm_testing::run_program(command(std::move(arguments)), seconds(60));
  }
  [[nodiscard]] run_result load(const std::string& path, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"load", path, "--name", "w", "--device", GetParam()});
    return run(std::move(more));
  }
  /// A file with one tensor.
  [[nodiscard]] std::string file(const std::string& name, const std::string& tensor) const {
    std::string path = cli_.directory() / name;
    write_file(path, safetensors_of({{tensor, "U8", {7}, 7}}));
    return path;
  }

  cli cli_;
  std::optional<gpushm::fake::fake_gpus> fake_;
  std::optional<child> broker_;
};

TEST_P(load_cli, loads_once) {
  const std::string path = file("model.safetensors", "weights");
  const auto first = load(path);
  EXPECT_EQ(first.status, exited(0)) << first.err;
  EXPECT_THAT(first.out, HasSubstr("loaded \"w\": 1 tensors, read by this process"));
  const auto again = load(path);
  EXPECT_THAT(again.out, HasSubstr("loaded before"));
  const auto document = load(path, {"--json"});
  const json loaded = json::parse(document.out).at("loaded");
  EXPECT_EQ(loaded.at("tensors"), 1);
  EXPECT_EQ(loaded.at("read_here"), false);
  EXPECT_EQ(loaded.at("name"), "w");
  const auto listed = run({"ls", "-q", "--all"});
  EXPECT_EQ(listed.out, "w\n") << "nothing else is left";
  EXPECT_EQ(run({"rm", "w"}).status, exited(0));
}

TEST_P(load_cli, replaces_a_model) {
  const std::string path = file("model.safetensors", "weights");
  const auto generation_of = [](const auto& result) {
    EXPECT_EQ(result.status, exited(0)) << result.err;
    return json::parse(result.out).at("loaded").at("generation").template get<std::uint64_t>();
  };
  const auto first = generation_of(load(path, {"--json", "--replace"}));
  EXPECT_EQ(generation_of(load(path, {"--json", "--replace", "--verify", "full"})), first);
  static_cast<void>(file("model.safetensors", "WEIGHTS"));
  EXPECT_NE(generation_of(load(path, {"--json", "--replace"})), first);
  EXPECT_EQ(run({"ls", "-q", "--all"}).out, "w\n");
}

TEST_P(load_cli, says_what_is_wrong) {
  const std::string path = file("model.safetensors", "weights");
  const auto nothing = load(cli_.directory() / "absent.safetensors");
  EXPECT_EQ(nothing.status, exited(1));
  EXPECT_THAT(nothing.err, HasSubstr("absent.safetensors"));
  std::ofstream(path, std::ios::app) << "more";
  const auto damaged = load(path);
  EXPECT_EQ(damaged.status, exited(1));
  EXPECT_THAT(damaged.err, HasSubstr("4 bytes at its end belong to no tensor"));
  EXPECT_EQ(run({"ls", "-q", "--all"}).out, "");
  EXPECT_EQ(load(file("a.safetensors", "one")).status, exited(0));
  const auto other = load(file("b.safetensors", "two"));
  EXPECT_EQ(other.status, exited(1));
  EXPECT_THAT(other.err, HasSubstr("another model"));
  EXPECT_THAT(other.err, HasSubstr("--replace"));
  EXPECT_EQ(run({"load", path}).status, exited(2)) << "no name";
  EXPECT_EQ(load(path, {"--threads", "0"}).status, exited(2));
  EXPECT_EQ(load(path, {"--read", "magic"}).status, exited(2));
  EXPECT_EQ(load(path, {"--verify", "magic"}).status, exited(2));
}

INSTANTIATE_TEST_SUITE_P(on, load_cli, ::testing::Values("host", "0"), [](const auto& chosen) {
  return std::string(chosen.param == std::string("host") ? "host" : "fake");
});

}  // namespace
}  // namespace gpushm_tests
