// SPDX-License-Identifier: Apache-2.0
// `gpushm load`: what a user sees, also with wrong input and in the wrong order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/support/broker_process/cli.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
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

TEST_P(load_cli, loads_versions) {
  const std::string path = file("model.safetensors", "weights");
  const auto first = load(path, {"--new-version"});
  EXPECT_EQ(first.status, exited(0)) << first.err;
  EXPECT_THAT(first.out, HasSubstr("loaded \"w@1\": 1 tensors, read by this process"));
  static_cast<void>(file("model.safetensors", "WEIGHTS"));
  const auto second = load(path, {"--new-version", "--json"});
  EXPECT_EQ(json::parse(second.out).at("loaded").at("name"), "w@2") << second.err;
  EXPECT_EQ(run({"ls", "-q", "--all"}).out, "w@1\nw@2\n");
  const auto bare = load(path);
  EXPECT_EQ(bare.status, exited(1));
  EXPECT_THAT(bare.err, HasSubstr("versions of this name exist"));
  EXPECT_EQ(load(path, {"--new-version", "--replace"}).status, exited(2));
  const auto missing = load(cli_.directory() / "missing", {"--new-version"});
  EXPECT_EQ(missing.status, exited(1));
  EXPECT_EQ(run({"ls", "-q", "--all"}).out, "w@1\nw@2\n") << "a failed load leaves nothing";
}

/// One rank's part of a model with a fused matrix, by bytes.
TEST_P(load_cli, loads_selections) {
  const std::string path = cli_.directory() / "model.safetensors";
  std::string content =
      safetensors_of({{"[x]", "U8", {6, 2}, 12}, {"left", "U8", {5}, 5}, {"y=z", "U8", {2, 4}, 8}});
  std::string data(25, 0);
  std::iota(data.begin(), data.end(), 'a');
  content.replace(content.size() - data.size(), data.size(), data);
  write_file(path, content);
  const std::vector<std::string> selection{"--tensors",
                                           "[x]",
                                           "--tensors",
                                           "y*",
                                           "--slice",
                                           "[x]=0:4-6,0-1",
                                           "--slice",
                                           "y?z=-1:1-2/2",
                                           "--json"};
  const auto loaded = load(path, selection);
  ASSERT_EQ(loaded.status, exited(0)) << loaded.err;
  EXPECT_EQ(json::parse(loaded.out).at("loaded").at("tensors"), 2);
  const std::string out = cli_.directory() / "out";
  ASSERT_EQ(run({"open", "w", "--out", out}).status, exited(0));
  std::ifstream file(out, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  constexpr std::size_t alignment = 256;
  // "left" is in between: a to l, m to q, r to y.
  EXPECT_EQ(bytes.substr(0, 6), "ijklab");
  EXPECT_EQ(bytes.substr(alignment, 4), "tuxy");
  const auto again = load(path, selection);
  EXPECT_EQ(json::parse(again.out).at("loaded").at("read_here"), false) << again.err;
  const auto other = load(path, {"--slice", "[x]=0:0-1,4-6"});
  EXPECT_EQ(other.status, exited(1));
  EXPECT_THAT(other.err, HasSubstr("another selection"));
}

TEST_P(load_cli, refuses_wrong_selections) {
  const std::string path = cli_.directory() / "model.safetensors";
  write_file(path, safetensors_of({{"w", "U8", {6, 2}, 12}}));
  const auto refused = [&](const std::string& option, const std::string& text, int status) {
    const auto result = load(path, {option, text});
    EXPECT_EQ(result.status, exited(status)) << text << result.err;
    return result.err;
  };
  for (const char* text : {"",           "w",          "w=",        "=0:0-1",     "w=0",
                           "w=0:",       "w=0:1",      "w=0:-1",    "w=0:0-1,",   "w=0:,0-1",
                           "w=0:0-1/0",  "w=0:0-1/",   "w=0:0-1/a", "w=x:0-1",    "w=:0-1",
                           "w=0:1-1",    "w=0:2-1",    "w=0: 0-1",  "w=0:0-1 ",   "w=0:0-+1",
                           "w=0:0-1/-2", "w=0:0-1,/2", "w=0:/2",    "w=0:0-1//2", "w=0:0-1,,1-2"}) {
    EXPECT_THAT(refused("--slice", text, 2), HasSubstr("--slice"));
  }
  EXPECT_THAT(refused("--slice", "w=0:0-9", 1), HasSubstr("it ends behind the last one"));
  EXPECT_THAT(refused("--slice", "w=2:0-1", 1), HasSubstr("it has 2 dimensions"));
  EXPECT_THAT(refused("--slice", "w=0:0-2,1-3", 1), HasSubstr("0 to 2 and 1 to 3 overlap"));
  EXPECT_THAT(refused("--slice", "v=0:0-1", 1), HasSubstr("these files have no tensor \"v\""));
  EXPECT_THAT(refused("--tensors", "{}", 1), HasSubstr("these files have no tensor \"{}\""));
  EXPECT_THAT(refused("--tensors", "[a,b]", 1), HasSubstr("matches \"[a,b]\""));
  EXPECT_EQ(run({"ls", "-q", "--all"}).out, "");
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
