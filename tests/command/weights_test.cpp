// SPDX-License-Identifier: Apache-2.0
// `gpushm weights`, and versions in `ls`, `stat` and `rm`: what an operator sees, also of versions
// that are being built, move or end meanwhile, and of segments that a hostile process has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/wire/messages.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/layout.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/weights/places.hpp"
#include "tests/weights/sample_model.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A tensor that a test stores.
struct stored {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
  std::vector<std::uint64_t> strides = {};
  /// Empty: the right one; "none": none.
  std::string hash = {};
};

std::string hash_of(const std::string& bytes) {
  std::vector<std::uint64_t> pieces;
  const auto view = std::as_bytes(std::span(bytes));
  for (std::size_t at = 0; at < view.size(); at += gpushm::tensors::hashed_bytes) {
    pieces.push_back(gpushm::tensors::hash_of(
        view.subspan(at, std::min<std::size_t>(gpushm::tensors::hashed_bytes, view.size() - at))));
  }
  return gpushm::tensors::tensor_hash(pieces);
}

/// Bytes that differ with the seed.
std::string some_bytes(std::size_t count, unsigned seed) {
  std::string result(count, '\0');
  std::uint32_t state = seed;
  for (char& each : result) {
    state = state * 1'664'525 + 1'013'904'223;
    each = static_cast<char>(state >> 24U);
  }
  return result;
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) {
    names.insert(name);
  }
  return names;
}

class weights_cli : public ::testing::TestWithParam<where> {
 protected:
  void SetUp() override {
    if (GetParam() == where::real && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    if (GetParam() == where::fake) {
      fake_.emplace();
    }
    broker_.emplace(child::start(command({"serve", "--accept-fake-chunks"})));
    broker_->wait_for_line("^gpushm: serving domain", seconds(30));
    trainer_.emplace(start_agent());
  }

  // ---- the command ----

  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> arguments) const {
    return with_gpus(cli_.command(std::move(arguments)));
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    return gpushm_testing::run_program(command(std::move(arguments)), seconds(60));
  }
  [[nodiscard]] run_result weights(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "weights");
    return run(std::move(arguments));
  }
  /// The document of a run that ended with this status.
  [[nodiscard]] json document(std::vector<std::string> arguments, int status = 0) const {
    arguments.push_back("--json");
    const run_result result = weights(std::move(arguments));
    EXPECT_EQ(result.status, exited(status)) << result.out << result.err;
    return json::parse(result.out);
  }
  /// What the run, which must end with this status, writes to standard error.
  [[nodiscard]] std::string refusal(std::vector<std::string> arguments, int status) const {
    const run_result result = weights(std::move(arguments));
    EXPECT_EQ(result.status, exited(status)) << result.out << result.err;
    EXPECT_EQ(result.out, "");
    return result.err;
  }

  // ---- the trainer ----

  [[nodiscard]] child start_agent() const {
    gpushm_testing::spawn_options options;
    options.argv = {gpushm_testing::own_program("versions_agent"), cli_.socket()};
    child agent = child::start(with_gpus(std::move(options)));
    agent.wait_for_line("^ready", seconds(30));
    return agent;
  }
  std::string order(const std::string& text) {
    trainer_->write(text + "\n");
    const std::string reply = trainer_->wait_for_line("^(ok|error) ", seconds(60));
    EXPECT_THAT(reply, ::testing::StartsWith("ok ")) << text;
    return reply.substr(std::min<std::size_t>(3, reply.size()));
  }
  std::string file(const std::string& content) {
    const std::string path =
        cli_.directory() / ("content" + std::to_string(++files_) + ".safetensors");
    write_file(path, content);
    return path;
  }
  /// Publishes a segment with tensors.
  void publish(const std::string& name, const std::vector<stored>& tensors) {
    json table = json::object();
    std::string bytes;
    for (const stored& each : tensors) {
      bytes.resize(gpushm::tensors::aligned(bytes.size()), '\0');
      json& entry = table[each.name];
      entry = {{"dtype", each.dtype},
               {"shape", each.shape},
               {"data_offsets", {bytes.size(), bytes.size() + each.bytes.size()}}};
      if (!each.strides.empty()) {
        entry["strides"] = each.strides;
      }
      if (each.hash != "none") {
        entry["hash"] = each.hash.empty() ? hash_of(each.bytes) : each.hash;
      }
      bytes += each.bytes;
    }
    order("tensors " + name + " " + device_of(GetParam()) + " " + file(table.dump()) + " " +
          file(bytes));
  }
  void publish_raw(const std::string& name, const std::string& bytes) {
    order("raw " + name + " " + device_of(GetParam()) + " " + file(bytes));
  }
  /// Publishes the next version of `base` as one part.
  std::string next_version(const std::string& base, const std::vector<stored>& tensors) {
    std::string name = base + "@" + order("begin " + base);
    publish(name, tensors);
    return name;
  }
  /// A safetensors file with these tensors.
  std::string model_file(const std::vector<stored>& tensors) {
    json header = json::object();
    std::string data;
    for (const stored& each : tensors) {
      header[each.name] = {{"dtype", each.dtype},
                           {"shape", each.shape},
                           {"data_offsets", {data.size(), data.size() + each.bytes.size()}}};
      data += each.bytes;
    }
    return file(safetensors_with(header.dump(), 0) + data);
  }

  cli cli_;
  std::optional<gpushm::fake::fake_gpus> fake_;
  std::optional<child> broker_;
  std::optional<child> trainer_;

 private:
  [[nodiscard]] gpushm_testing::spawn_options with_gpus(
      gpushm_testing::spawn_options options) const {
    if (fake_) {
      for (const auto& each : fake_->environment()) {
        options.env.push_back(each);
      }
    }
    return options;
  }

  int files_ = 0;
};

// ---- ls ----

TEST_P(weights_cli, ls_shows_the_versions_of_a_name) {
  next_version("w/x", {{"a", "U8", {3}, "abc"}});
  next_version("w/x", {{"a", "U8", {3}, "abd"}});
  order("hold w/x@1");
  order("begin w/x r0");
  ASSERT_EQ(weights({"pin", "w/x@1", "prod"}).status, exited(0));
  const json list = document({"ls", "w/x"});
  EXPECT_EQ(keys(list), (std::set<std::string>{"domain", "socket", "name", "versions"}));
  EXPECT_EQ(list.at("name"), "w/x");
  ASSERT_EQ(list.at("versions").size(), 3U);
  const json& building = list.at("versions").at(0);
  EXPECT_EQ(keys(building),
            (std::set<std::string>{"number", "state", "withdrawn", "aliases", "bytes", "held"}));
  EXPECT_EQ(building.at("number"), 3);
  EXPECT_EQ(building.at("state"), "building");
  EXPECT_EQ(building.at("bytes"), 0);
  EXPECT_EQ(building.at("aliases"), json::array());
  EXPECT_EQ(list.at("versions").at(1).at("aliases"), json::array({"latest"}));
  EXPECT_EQ(list.at("versions").at(1).at("held"), 0);
  const json& first = list.at("versions").at(2);
  EXPECT_EQ(first.at("aliases"), json::array({"prod"}));
  EXPECT_EQ(first.at("held"), 1);
  EXPECT_EQ(first.at("withdrawn"), false);
  EXPECT_GE(first.at("bytes"), 256);
  const auto text = weights({"ls", "w/x"});
  EXPECT_THAT(text.out, ::testing::StartsWith("VERSION  STATE"));
  EXPECT_THAT(text.out, AllOf(HasSubstr("building"), HasSubstr("latest"), HasSubstr("prod")));
}

TEST_P(weights_cli, ls_shows_the_names_that_have_versions) {
  const auto none = weights({"ls"});
  EXPECT_EQ(none.status, exited(0));
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no name has a published version"));
  order("begin w/building r0");
  next_version("w/x", {{"a", "U8", {3}, "abc"}});
  next_version("w/x", {{"a", "U8", {3}, "abc"}});
  next_version("w/x.y", {{"a", "U8", {3}, "abc"}});
  publish("w/plain", {{"a", "U8", {3}, "abc"}});
  const json list = document({"ls"});
  EXPECT_EQ(keys(list), (std::set<std::string>{"domain", "socket", "names"}));
  ASSERT_EQ(list.at("names").size(), 2U) << list;
  const json& entry = list.at("names").at(0);
  EXPECT_EQ(keys(entry), (std::set<std::string>{"name", "newest", "versions", "bytes", "aliases"}));
  EXPECT_EQ(entry.at("name"), "w/x");
  EXPECT_EQ(entry.at("newest"), 2);
  EXPECT_EQ(entry.at("versions"), 2);
  EXPECT_EQ(entry.at("aliases"), (json{{"latest", 2}}));
  EXPECT_EQ(list.at("names").at(1).at("name"), "w/x.y");
  EXPECT_THAT(weights({"ls"}).out, HasSubstr("latest=2"));
}

TEST_P(weights_cli, ls_suggests_names) {
  next_version("w/llama", {{"a", "U8", {3}, "abc"}});
  EXPECT_THAT(refusal({"ls", "w/lama"}, 1), HasSubstr("did you mean \"w/llama\"?"));
  EXPECT_THAT(refusal({"pin", "w/lama@latest"}, 1), HasSubstr("did you mean \"w/llama@latest\"?"));
  EXPECT_THAT(refusal({"verify", "w/lama@1"}, 2), HasSubstr("did you mean \"w/llama@1\"?"));
  EXPECT_THAT(refusal({"ls", "other"}, 1), HasSubstr("`gpushm weights ls` lists"));
  EXPECT_THAT(refusal({"ls", "w/llama@1"}, 2), HasSubstr("pass \"w/llama\""));
}

// ---- diff ----

TEST_P(weights_cli, diff_finds_each_kind_of_change) {
  const std::string evil = "evil\x1b[2J";
  next_version("w/x",
               {{"same", "U8", {4}, "same"},
                {"gone", "U8", {4}, "gone"},
                {"type", "F16", {2}, "type"},
                {"shape", "U8", {4}, "form"},
                {"order", "U8", {2, 2}, "abcd"},
                {"c-order", "U8", {2, 2}, "abcd", {2, 1}},
                {evil, "F32", {}, "1234"}});
  next_version("w/x",
               {{"same", "U8", {4}, "same"},
                {"new", "U8", {4}, "new!"},
                {"type", "BF16", {2}, "type"},
                {"shape", "U8", {2, 2}, "form"},
                {"order", "U8", {2, 2}, "abcd", {1, 2}},
                {"c-order", "U8", {2, 2}, "abcd"},
                {evil, "F32", {}, "1235"}});
  for (const bool is_by_bytes : {false, true}) {
    std::vector<std::string> arguments{"diff", "w/x@1", "w/x@latest"};
    if (is_by_bytes) {
      arguments.emplace_back("--bytes");
    }
    const json diff = document(arguments, 1).at("diff");
    EXPECT_EQ(keys(diff),
              (std::set<std::string>{"a",
                                     "b",
                                     "equal",
                                     "equal_tensors",
                                     "added",
                                     "removed",
                                     "dtype",
                                     "shape",
                                     "strides",
                                     "contents",
                                     "by_hashes",
                                     "by_bytes",
                                     "differences"}));
    EXPECT_EQ(diff.at("a"), "w/x@1");
    EXPECT_EQ(diff.at("b"), "w/x@2") << "what the alias referred to";
    EXPECT_EQ(diff.at("equal"), false);
    EXPECT_EQ(diff.at("equal_tensors"), 2);
    EXPECT_EQ(diff.at(is_by_bytes ? "by_bytes" : "by_hashes"), 3);
    EXPECT_EQ(diff.at(is_by_bytes ? "by_hashes" : "by_bytes"), 0);
    std::set<std::string> changes;
    for (const json& each : diff.at("differences")) {
      EXPECT_EQ(keys(each), (std::set<std::string>{"change", "part", "tensor", "a", "b"}));
      changes.insert(each.at("change").get<std::string>() + " " +
                     each.at("tensor").get<std::string>());
    }
    EXPECT_EQ(changes,
              (std::set<std::string>{"added new",
                                     "removed gone",
                                     "dtype type",
                                     "shape shape",
                                     "strides order",
                                     "contents " + evil}));
    for (const char* const kind : {"added", "removed", "dtype", "shape", "strides", "contents"}) {
      EXPECT_EQ(diff.at(kind), 1) << kind;
    }
    const json& removed = diff.at("differences").at(1);
    EXPECT_EQ(removed.at("b"), nullptr);
    EXPECT_EQ(removed.at("a"),
              (json{{"dtype", "U8"},
                    {"framework_dtype", nullptr},
                    {"shape", {4}},
                    {"strides", nullptr},
                    {"size_bytes", 4},
                    {"stored_hash", hash_of("gone")}}));
  }
  const auto text = weights({"diff", "w/x@1", "w/x@2"});
  EXPECT_EQ(text.status, exited(1));
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("dtype"),
                    HasSubstr("F16 [2]"),
                    HasSubstr("BF16 [2]"),
                    HasSubstr("U8 [2, 2] strides [1, 2]"),
                    HasSubstr("\\x1b[2J"),
                    Not(HasSubstr("\x1b")),
                    HasSubstr("2 tensors are equal")));
  const auto same = weights({"diff", "w/x@2", "w/x@latest"});
  EXPECT_EQ(same.status, exited(0));
  EXPECT_EQ(same.out, "\"w/x@2\" and \"w/x@2\" are equal: 7 tensors\n");
}

TEST_P(weights_cli, diff_says_when_it_trusts_hashes) {
  const std::string forged = hash_of("forged");
  publish("first", {{"a", "U8", {4}, "real", {}, forged}, {"b", "U8", {2}, "xx", {}, "none"}});
  publish("second", {{"a", "U8", {4}, "fake", {}, forged}, {"b", "U8", {2}, "xx"}});
  const auto trusting = weights({"diff", "first", "second"});
  EXPECT_EQ(trusting.status, exited(0));
  EXPECT_THAT(trusting.err, HasSubstr("1 tensors were compared by the hashes"));
  EXPECT_THAT(trusting.err, HasSubstr("--bytes"));
  const auto by_bytes = weights({"diff", "first", "second", "--bytes"});
  EXPECT_EQ(by_bytes.status, exited(1));
  EXPECT_THAT(by_bytes.out, HasSubstr("1 contents; 1 tensors are equal"));
  EXPECT_EQ(by_bytes.err, "");
  EXPECT_EQ(document({"diff", "first", "second"}).at("diff").at("by_bytes"), 1)
      << "one side has no hash";
}

TEST_P(weights_cli, diff_reads_all_bytes_of_large_tensors) {
  std::string bytes = some_bytes((9U << 20U) + 5, 1);
  const std::vector<std::uint64_t> shape{bytes.size()};
  next_version("w/x", {{"large", "U8", shape, bytes}, {"empty", "F32", {0, 7}, ""}});
  const std::string equal =
      model_file({{"large", "U8", shape, bytes}, {"empty", "F32", {0, 7}, ""}});
  EXPECT_EQ(weights({"diff", "w/x@1", equal}).status, exited(0));
  EXPECT_EQ(weights({"verify", "w/x@1", equal}).status, exited(0));
  for (const std::size_t place : {std::size_t{0}, std::size_t{4} << 20U, bytes.size() - 1}) {
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    const std::string other =
        model_file({{"large", "U8", shape, bytes}, {"empty", "F32", {0, 7}, ""}});
    EXPECT_EQ(weights({"diff", "w/x@1", other}).status, exited(1)) << place;
    EXPECT_EQ(weights({"verify", "w/x@1", other}).status, exited(1)) << place;
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
  }
}

TEST_P(weights_cli, diff_compares_parts_by_name) {
  const auto publish_parts = [&](const std::string& first, const std::string& second) {
    const std::string version = "w/x@" + order("begin w/x r0 r1 raw");
    publish(version + "/r0", {{"a", "U8", {2}, first}});
    publish_raw(version + "/raw", "some bytes");
    publish(version + "/r1", {{"a", "U8", {2}, second}});
  };
  publish_parts("00", "11");
  publish_parts("00", "12");
  const json diff = document({"diff", "w/x@1", "w/x@2"}, 1).at("diff");
  EXPECT_EQ(diff.at("equal_tensors"), 2);
  ASSERT_EQ(diff.at("differences").size(), 1U);
  EXPECT_EQ(diff.at("differences").at(0).at("part"), "r1");
  EXPECT_EQ(diff.at("differences").at(0).at("change"), "contents");
  EXPECT_EQ(weights({"diff", "w/x@1/r0", "w/x@2/r0"}).status, exited(0));
  EXPECT_EQ(weights({"diff", "w/x@1/r1", "w/x@latest/r1"}).status, exited(1));
  EXPECT_EQ(weights({"diff", "w/x@1/r0", "w/x@1/r1"}).status, exited(1));
  EXPECT_EQ(weights({"diff", "w/x@1/raw", "w/x@2/raw"}).status, exited(0));
  // What a version gets later belongs to it, too.
  publish_raw("w/x@2/kernels", "compiled");
  const json with_kernels = document({"diff", "w/x@1", "w/x@2"}, 1).at("diff");
  EXPECT_EQ(with_kernels.at("added"), 1);
  EXPECT_EQ(with_kernels.at("differences").at(0).at("part"), "kernels");
  EXPECT_EQ(with_kernels.at("differences").at(0).at("tensor"), nullptr);
}

TEST_P(weights_cli, diff_joins_parts_for_files) {
  const std::string version = "w/x@" + order("begin w/x p0 p1");
  publish(version + "/p0", {{"a", "U8", {2}, "00"}});
  publish(version + "/p1", {{"b", "U8", {2}, "11"}});
  const stored first{"a", "U8", {2}, "00"};
  const stored second{"b", "U8", {2}, "11"};
  EXPECT_EQ(weights({"diff", "w/x@1", model_file({first, second})}).status, exited(0));
  EXPECT_EQ(weights({"diff", "w/x@1", model_file({first}), model_file({second})}).status,
            exited(0));
  EXPECT_EQ(weights({"diff", model_file({first, second}), "w/x@1"}).status, exited(0));
  EXPECT_EQ(weights({"diff", "w/x@1", model_file({first})}).status, exited(1));
  EXPECT_EQ(weights({"diff", "w/x@1/p0", model_file({first})}).status, exited(0));
  EXPECT_EQ(weights({"verify", "w/x@1", model_file({first, second})}).status, exited(0));
  publish_raw("w/x@1/kernels", "compiled");
  EXPECT_THAT(refusal({"diff", "w/x@1", model_file({first, second})}, 2),
              HasSubstr("its part \"kernels\" has no tensors"));
  const std::string ranks = "w/y@" + order("begin w/y r0 r1");
  publish(ranks + "/r0", {first});
  publish(ranks + "/r1", {first});
  EXPECT_THAT(
      refusal({"diff", "w/y@1", model_file({first})}, 2),
      AllOf(HasSubstr("several of its parts have a tensor \"a\""), HasSubstr("w/y@1/PART")));
}

TEST_P(weights_cli, diff_reads_files_folders_and_indexes) {
  const stored first{"a", "U8", {2}, "00"};
  const stored second{"b", "U8", {2}, "11"};
  next_version("w/x", {first, second});
  const std::string folder = cli_.directory() / "model";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(model_file({first}), folder + "/1.safetensors");
  std::filesystem::copy_file(model_file({second}), folder + "/2.safetensors");
  const std::string index = folder + "/model.safetensors.index.json";
  write_file(index, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  EXPECT_EQ(weights({"diff", "w/x@1", folder}).status, exited(0));
  EXPECT_EQ(weights({"diff", "w/x@1", index}).status, exited(0));
  EXPECT_EQ(weights({"diff", index, folder}).status, exited(0)) << "without a broker";
  const auto by_files = weights({"diff", folder + "/1.safetensors", folder + "/2.safetensors"});
  EXPECT_EQ(by_files.status, exited(1));
  EXPECT_THAT(by_files.out, HasSubstr("1 added, 1 removed"));
  std::ofstream(folder + "/2.safetensors", std::ios::app) << "more";
  EXPECT_THAT(refusal({"diff", "w/x@1", folder}, 2),
              HasSubstr("4 bytes at its end belong to no tensor"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "./absent"}, 2), HasSubstr("absent"));
}

TEST_P(weights_cli, diff_shows_twenty_differences_or_all) {
  std::vector<stored> tensors;
  for (int i = 0; i != 50; ++i) {
    tensors.push_back({"layer." + std::to_string(i), "U8", {2}, "00"});
  }
  next_version("w/x", tensors);
  for (stored& each : tensors) {
    each.bytes = "11";
  }
  next_version("w/x", tensors);
  const auto rows = [](const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = text.find("layer."); at != std::string::npos;
         at = text.find("layer.", at + 1)) {
      ++count;
    }
    return count;
  };
  const auto some = weights({"diff", "w/x@1", "w/x@2"});
  EXPECT_EQ(rows(some.out), 20U);
  EXPECT_THAT(some.out, HasSubstr("and 30 more, which --all shows"));
  EXPECT_EQ(rows(weights({"diff", "w/x@1", "w/x@2", "--all"}).out), 50U);
  EXPECT_EQ(document({"diff", "w/x@1", "w/x@2"}, 1).at("diff").at("differences").size(), 50U);
  order("poke w/x@2 0 0");
  EXPECT_EQ(rows(weights({"verify", "w/x@2", model_file({})}).out), 20U);
  EXPECT_EQ(rows(weights({"verify", "w/x@2", model_file({}), "--all"}).out), 50U);
}

/// Versions are equal to the first one in turns: an alias that moves must never give one part of
/// each.
TEST_P(weights_cli, diff_never_mixes_versions) {
  constexpr int rounds = 8;
  const auto publish_next = [&](const std::string& bytes) {
    const std::string version = "w/x@" + order("begin w/x r0 r1");
    publish(version + "/r0", {{"a", "U8", {4}, bytes}});
    publish(version + "/r1", {{"a", "U8", {4}, bytes}});
  };
  publish_next("odd!");
  ASSERT_EQ(weights({"pin", "w/x@1"}).status, exited(0));
  for (int i = 0; i != rounds; ++i) {
    child diff =
        child::start(command({"weights", "diff", "w/x@latest", "w/x@pinned", "--bytes", "--json"}));
    publish_next(i % 2 == 0 ? "even" : "odd!");
    const auto status = diff.wait_exit(seconds(60));
    ASSERT_TRUE(status == exited(0) || status == exited(1)) << diff.output().all_output();
    const json result = json::parse(diff.text(gpushm_testing::stream::out)).at("diff");
    const std::string name = result.at("a");
    const bool is_odd = std::stoi(name.substr(name.find('@') + 1)) % 2 == 1;
    EXPECT_EQ(result.at("contents"), is_odd ? 0 : 2) << result;
    EXPECT_EQ(result.at("b"), "w/x@1");
  }
}

TEST_P(weights_cli, diff_distinguishes_failures_from_differences) {
  next_version("w/x", {{"a", "U8", {2}, "00"}});
  order("begin w/x r0");
  const std::string building = refusal({"diff", "w/x@2", "w/x@1"}, 2);
  EXPECT_THAT(building, HasSubstr("w/x@2"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "w/x@9"}, 2), HasSubstr("published: w/x@1"));
  EXPECT_THAT(refusal({"diff", "w/x", "w/x@1"}, 2), HasSubstr("w/x@latest"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "nothing"}, 2), HasSubstr("no such segment"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "w/x@Prod"}, 2), HasSubstr("NAME@ALIAS"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "w/x@1", "w/x@1"}, 2),
              HasSubstr("B is one name, or files"));
  EXPECT_THAT(refusal({"diff", "w/x@1", "w/x@1", "./a"}, 2), HasSubstr("B is one name, or files"));
  EXPECT_EQ(weights({"diff", "w/x@1"}).status, exited(2));
  const auto as_json = weights({"diff", "w/x@1", "nothing", "--json"});
  EXPECT_EQ(as_json.status, exited(2));
  EXPECT_EQ(json::parse(as_json.out).at("error").at("code"), "no_such_segment");
  EXPECT_EQ(weights({"diff", "w/x@1", "w/x@1", "--socket", "/nowhere"}).status, exited(2));
  EXPECT_EQ(weights({"verify", "w/x@1", "--socket", "/nowhere"}).status, exited(2));
  EXPECT_EQ(weights({"ls", "--socket", "/nowhere"}).status, exited(1));
}

// ---- verify ----

TEST_P(weights_cli, verify_reads_all_bytes) {
  const std::vector<stored> tensors{{"a", "U8", {2}, "00"}, {"b", "F32", {1}, "1234"}};
  next_version("w/x", tensors);
  const auto verified = weights({"verify", "w/x@latest"});
  EXPECT_EQ(verified.status, exited(0)) << verified.err;
  EXPECT_EQ(verified.out, "verified \"w/x@1\": 2 tensors, 6 B\n");
  EXPECT_THAT(weights({"verify", "w/x@1", model_file(tensors)}).out,
              HasSubstr("equal to the files"));
  order("poke w/x@1 256 0");
  const json damaged = document({"verify", "w/x@1"}, 1).at("verification");
  EXPECT_EQ(keys(damaged),
            (std::set<std::string>{"name", "files", "ok", "verified", "bytes", "problems"}));
  EXPECT_EQ(damaged.at("ok"), false);
  EXPECT_EQ(damaged.at("verified"), 1);
  ASSERT_EQ(damaged.at("problems").size(), 1U);
  const json& problem = damaged.at("problems").at(0);
  EXPECT_EQ(keys(problem),
            (std::set<std::string>{"result",
                                   "part",
                                   "tensor",
                                   "dtype",
                                   "framework_dtype",
                                   "shape",
                                   "strides",
                                   "size_bytes",
                                   "stored_hash",
                                   "hash"}));
  EXPECT_EQ(problem.at("result"), "damaged");
  EXPECT_EQ(problem.at("tensor"), "b");
  EXPECT_EQ(problem.at("stored_hash"), hash_of("1234"));
  EXPECT_EQ(problem.at("hash"), hash_of(std::string("\0", 1) + "234"));
  const auto text = weights({"verify", "w/x@1"});
  EXPECT_EQ(text.status, exited(1));
  EXPECT_THAT(text.out, HasSubstr("\"w/x@1\" is not verified: 1 damaged; 1 tensors are verified"));
  EXPECT_EQ(weights({"diff", "w/x@1", model_file(tensors)}).status, exited(1));
}

TEST_P(weights_cli, verify_claims_nothing_without_hashes) {
  const std::string version = "w/x@" + order("begin w/x raw t");
  publish_raw(version + "/raw", "bytes");
  publish(version + "/t", {{"a", "U8", {2}, "00", {}, "none"}, {"b", "U8", {2}, "11"}});
  const json result = document({"verify", "w/x@1"}, 1).at("verification");
  ASSERT_EQ(result.at("problems").size(), 2U);
  EXPECT_EQ(result.at("problems").at(0).at("result"), "no-tensors");
  EXPECT_EQ(result.at("problems").at(0).at("part"), "raw");
  EXPECT_EQ(result.at("problems").at(1).at("result"), "no-hash");
  const stored first{"a", "U8", {2}, "00"};
  const stored second{"b", "U8", {2}, "11"};
  EXPECT_EQ(weights({"verify", "w/x@1/t", model_file({first, second})}).status, exited(0))
      << "the files say what the bytes are";
  EXPECT_EQ(weights({"verify", "w/x@1/t"}).status, exited(1));
}

TEST_P(weights_cli, verify_finds_each_difference_from_files) {
  next_version("w/x",
               {{"contents", "U8", {2}, "00"},
                {"dtype", "U8", {2}, "00"},
                {"shape", "U8", {2}, "00"},
                {"more", "U8", {2}, "00"},
                {"same", "U8", {2}, "00"}});
  const std::string files = model_file({{"contents", "U8", {2}, "01"},
                                        {"dtype", "I8", {2}, "00"},
                                        {"shape", "U8", {1, 2}, "00"},
                                        {"absent", "U8", {2}, "00"},
                                        {"same", "U8", {2}, "00"}});
  const json result = document({"verify", "w/x@1", files}, 1).at("verification");
  std::set<std::string> problems;
  for (const json& each : result.at("problems")) {
    problems.insert(each.at("result").get<std::string>() + " " +
                    each.at("tensor").get<std::string>());
  }
  EXPECT_EQ(problems,
            (std::set<std::string>{"different contents",
                                   "different dtype",
                                   "different shape",
                                   "not-in-files more",
                                   "missing absent"}));
  EXPECT_EQ(result.at("verified"), 1);
  EXPECT_EQ(result.at("files"), json::array({files}));
}

// ---- segments that others have written ----

TEST_P(weights_cli, refuses_damaged_and_hostile_tables) {
  next_version("w/x", {{"a", "U8", {2}, "00"}});
  next_version("w/x", {{"a", "U8", {2}, "00"}});
  order("poke w/x@2 300 255");  // in the table, which is at 256
  EXPECT_THAT(refusal({"diff", "w/x@1", "w/x@2"}, 2), HasSubstr("w/x@2"));
  const auto verified = weights({"verify", "w/x@2", "--json"});
  EXPECT_EQ(verified.status, exited(2));
  EXPECT_EQ(json::parse(verified.out).at("error").at("code"), "protocol_error");
  const auto refused = [&](const std::string& name, const json& metadata, const char* code) {
    order("raw " + name + " " + device_of(GetParam()) + " " + file(std::string(4096, 'x')) + " " +
          file(metadata.dump()));
    const auto result = weights({"diff", name, "w/x@1", "--json"});
    EXPECT_EQ(result.status, exited(2)) << result.out;
    EXPECT_EQ(json::parse(result.out).at("error").at("code"), code) << name;
    EXPECT_EQ(weights({"verify", name}).status, exited(2)) << name;
  };
  json metadata{{"format", "gpushm-tensors/2"},
                {"id", std::string(32, '0')},
                {"fingerprint", ""},
                {"table_offset", 256},
                {"table_bytes", 4096 - 256 - 64},
                {"sources_bytes", 0}};
  refused("unsealed", metadata, "invalid_argument");
  metadata["table_offset"] = std::uint64_t{1} << 63U;
  refused("far", metadata, "protocol_error");
  metadata["table_offset"] = "x";
  refused("text", metadata, "protocol_error");
  metadata["format"] = "gpushm-tensors/3";
  refused("newer", metadata, "unsupported_version");
  EXPECT_EQ(weights({"ls", "w/x"}).status, exited(0)) << "the broker serves on";
}

// ---- rollback ----

TEST_P(weights_cli, rollback_withdraws_the_newest_version) {
  for (int i = 0; i != 3; ++i) {
    next_version("w/x", {{"a", "U8", {1}, std::to_string(i)}});
  }
  const json first = document({"rollback", "w/x"}).at("rolled_back");
  EXPECT_EQ(
      first,
      (json{{"name", "w/x"}, {"alias", "latest"}, {"from", 3}, {"to", 2}, {"withdrawn", true}}));
  EXPECT_EQ(run({"stat", "w/x@latest", "--json"}).status, exited(0));
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases").at("latest"), 2);
  const auto second = weights({"rollback", "w/x", "latest"});
  EXPECT_EQ(second.out, "rolled back \"w/x@latest\" from 2 to 1; version 2 is withdrawn\n");
  EXPECT_THAT(refusal({"rollback", "w/x"}, 1), HasSubstr("no lower version is published"));
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases").at("latest"), 1)
      << "nothing has changed";
  EXPECT_EQ(next_version("w/x", {{"a", "U8", {1}, "4"}}), "w/x@4") << "no number is used again";
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases").at("latest"), 4);
}

TEST_P(weights_cli, rollback_moves_an_alias_down) {
  for (int i = 0; i != 4; ++i) {
    next_version("w/x", {{"a", "U8", {1}, std::to_string(i)}});
  }
  order("hold w/x@3");
  order("begin w/x r0");
  ASSERT_EQ(weights({"pin", "w/x@4", "prod"}).status, exited(0));
  ASSERT_EQ(weights({"pin", "w/x@4", "prod"}).status, exited(0)) << "again";
  // 4 stays because of prod, 3 because a process has it; both are withdrawn.
  ASSERT_EQ(weights({"rollback", "w/x"}).status, exited(0));
  ASSERT_EQ(weights({"rollback", "w/x"}).status, exited(0));
  const auto moved = weights({"rollback", "w/x", "prod"});
  EXPECT_EQ(moved.out, "rolled back \"w/x@prod\" from 4 to 2\n") << "3 is withdrawn";
  EXPECT_EQ(
      document({"rollback", "w/x", "prod"}).at("rolled_back"),
      (json{{"name", "w/x"}, {"alias", "prod"}, {"from", 2}, {"to", 1}, {"withdrawn", false}}));
  EXPECT_THAT(refusal({"rollback", "w/x", "prod"}, 1), HasSubstr("it refers to version 1"));
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases").at("prod"), 1);
}

TEST_P(weights_cli, rollback_refuses_what_it_cannot_do) {
  EXPECT_THAT(refusal({"rollback", "w/x"}, 1), HasSubstr("no version of this name exists"));
  order("begin w/x r0");
  EXPECT_THAT(refusal({"rollback", "w/x"}, 1), HasSubstr("refers to no version"))
      << "it is being built";
  next_version("w/y", {{"a", "U8", {1}, "1"}});
  EXPECT_THAT(refusal({"rollback", "w/y"}, 1), HasSubstr("no lower version is published"));
  EXPECT_THAT(refusal({"rollback", "w/y", "prod"}, 1), HasSubstr("refers to no version"));
  EXPECT_THAT(refusal({"rollback", "w/y", "Prod"}, 2), HasSubstr("not the name of an alias"));
  EXPECT_THAT(refusal({"rollback", "w/y@1"}, 2), HasSubstr("pass \"w/y\""));
  EXPECT_EQ(weights({"rollback"}).status, exited(2));
  EXPECT_EQ(document({"ls", "w/y"}).at("versions").at(0).at("withdrawn"), false);
}

// ---- pin and unpin ----

TEST_P(weights_cli, pin_creates_and_moves_aliases) {
  next_version("w/x", {{"a", "U8", {1}, "1"}});
  next_version("w/x", {{"a", "U8", {1}, "2"}});
  EXPECT_EQ(document({"pin", "w/x@1"}).at("pinned"),
            (json{{"name", "w/x"}, {"alias", "pinned"}, {"from", nullptr}, {"to", 1}}));
  const auto moved = weights({"pin", "w/x@latest"});
  EXPECT_EQ(moved.out, "pinned \"w/x@pinned\" to 2 (before: 1)\n");
  EXPECT_EQ(weights({"pin", "w/x@pinned", "prod"}).out, "pinned \"w/x@prod\" to 2\n");
  EXPECT_EQ(weights({"unpin", "w/x"}).out, "unpinned \"w/x@pinned\" from 2\n");
  EXPECT_EQ(document({"unpin", "w/x", "prod"}).at("unpinned"),
            (json{{"name", "w/x"}, {"alias", "prod"}, {"from", 2}}));
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases"), (json{{"latest", 2}}));
}

TEST_P(weights_cli, pin_refuses_wrong_arguments) {
  next_version("w/x", {{"a", "U8", {1}, "1"}});
  order("begin w/x r0");
  EXPECT_EQ(weights({"pin", "w/x@2"}).status, exited(1)) << "it is being built";
  EXPECT_THAT(refusal({"pin", "w/x@9"}, 1), HasSubstr("w/x"));
  EXPECT_THAT(refusal({"pin", "w/x@prod"}, 1), HasSubstr("w/x@1"));
  EXPECT_THAT(refusal({"pin", "w/none@1"}, 1), HasSubstr("w/none"));
  EXPECT_THAT(refusal({"pin", "w/x"}, 2), HasSubstr("this is not a version"));
  EXPECT_THAT(refusal({"pin", "w/x@1/r0"}, 2), HasSubstr("pass \"w/x@1\""));
  EXPECT_THAT(refusal({"pin", "w/x@1", "w/x@prod"}, 2), HasSubstr("not the name of an alias"));
  EXPECT_THAT(refusal({"pin", "w/x@1", "latest"}, 2), HasSubstr("follows publications"));
  EXPECT_EQ(weights({"unpin", "w/x", "latest"}).status, exited(1));
  EXPECT_EQ(weights({"unpin", "w/x", "prod"}).status, exited(1));
  EXPECT_EQ(weights({"unpin", "w/x@1"}).status, exited(2));
  EXPECT_EQ(weights({}).status, exited(2));
  EXPECT_EQ(document({"ls"}).at("names").at(0).at("aliases"), (json{{"latest", 1}}));
}

// ---- other commands ----

TEST_P(weights_cli, ls_stat_and_rm_accept_versions) {
  next_version("w/x", {{"a", "U8", {1}, "1"}});
  const std::string parts = "w/p@" + order("begin w/p r0 r1");
  publish(parts + "/r0", {{"a", "U8", {1}, "1"}});
  EXPECT_EQ(run({"ls", "-q"}).out, "w/x@1\n") << "a part is not seen before all are";
  publish(parts + "/r1", {{"a", "U8", {1}, "1"}});
  EXPECT_EQ(run({"ls", "-q"}).out, "w/p@1/r0\nw/p@1/r1\nw/x@1\n");
  EXPECT_EQ(run({"ls", "w/p@", "-q"}).out, "w/p@1/r0\nw/p@1/r1\n");
  EXPECT_EQ(json::parse(run({"stat", "w/x@latest", "--json"}).out).at("segment").at("name"),
            "w/x@1");
  EXPECT_THAT(run({"stat", "w/p@1"}).err, HasSubstr("name a part, such as \"w/p@1/r0\""));
  EXPECT_THAT(run({"stat", "w/p@latest"}).err, HasSubstr("such as \"w/p@latest/r0\""));
  EXPECT_THAT(run({"open", "w/x"}).err, HasSubstr("w/x@latest"));
  EXPECT_THAT(run({"stat", "w/x@9"}).err, Not(HasSubstr("did you mean")));
  EXPECT_EQ(run({"stat", "w/p@latest/r1"}).status, exited(0));
  const auto part = run({"rm", "w/p@1/r0"});
  EXPECT_EQ(part.status, exited(1));
  EXPECT_THAT(part.err, HasSubstr("remove w/p@1"));
  const auto alias = run({"rm", "w/p@latest"});
  EXPECT_EQ(alias.status, exited(1));
  EXPECT_THAT(alias.err, HasSubstr("by its number"));
  ASSERT_EQ(weights({"pin", "w/p@1", "prod"}).status, exited(0));
  const auto pinned = run({"rm", "w/p@1"});
  EXPECT_EQ(pinned.status, exited(1));
  EXPECT_THAT(pinned.err, HasSubstr("prod"));
  ASSERT_EQ(weights({"unpin", "w/p", "prod"}).status, exited(0));
  EXPECT_EQ(run({"rm", "w/p@1", "w/x@1"}).out, "removed \"w/p@1\"\nremoved \"w/x@1\"\n");
  EXPECT_EQ(run({"ls", "-q"}).out, "");
}

TEST_P(weights_cli, versions_are_completed) {
  next_version("w/x", {{"a", "U8", {1}, "1"}});
  const std::string parts = "w/p@" + order("begin w/p r0");
  publish(parts + "/r0", {{"a", "U8", {1}, "1"}});
  const auto completed = [&](const std::string& below, const std::string& word) {
    return run({"complete", "--", "weights", below, word}).out;
  };
  EXPECT_EQ(completed("ls", ""), "w/p\nw/x\n");
  EXPECT_EQ(completed("rollback", "w/x"), "w/x\n");
  EXPECT_EQ(completed("pin", ""), "w/p@1\nw/x@1\n");
  EXPECT_EQ(completed("diff", "w/x"), "w/x@1\n:files\n");
  EXPECT_EQ(completed("verify", "w/p"), "w/p@1\nw/p@1/r0\n:files\n");
  EXPECT_EQ(run({"complete", "--", "rm", ""}).out, "w/p@1\nw/p@1/r0\nw/x@1\n");
  EXPECT_EQ(completed("unpin", "--soc"),
            "--socket\tThe broker's socket (else $GPUSHM_SOCKET, "
            "/run/gpushm/d/…, $XDG_RUNTIME_DIR/gpushm/d/…)\n");
}

// ---- others that change versions between the requests ----

namespace wire = gpushm::wire;

/// Rolls back "w/x" at a broker whose versions are 6 and 7, and that answers the change, and the
/// question what `latest` refers to afterwards, in this way. Returns the changes that it got.
run_result rollback_with(const wire::body& to_change,
                         const wire::body& to_resolve,
                         const std::string& alias,
                         std::vector<wire::change_version>& changes) {
  const scripted_broker broker(
      [&](const wire::message& asked) {
        wire::body answer = wire::done{};
        if (std::holds_alternative<wire::list_versions>(asked.body)) {
          using gpushm::version_state;
          answer = wire::versions{{{7, version_state::published, false, 1, 0, {"latest", "prod"}},
                                   {6, version_state::published, false, 1, 0, {}}}};
        } else if (const auto* const change = std::get_if<wire::change_version>(&asked.body)) {
          changes.push_back(*change);
          answer = to_change;
        } else if (std::holds_alternative<wire::resolve>(asked.body)) {
          answer = to_resolve;
        }
        std::vector<scripted_broker::reply> replies;
        replies.push_back({{asked.id, std::move(answer)}});
        return replies;
      },
      false,
      0,
      true);
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushm"),
                  "weights",
                  "rollback",
                  "w/x",
                  alias,
                  "--socket",
                  broker.socket_path()};
  return gpushm_testing::run_program(options, seconds(60));
}

TEST(weights_cli_with_others, rollback_reports_a_version_that_was_published_meanwhile) {
  std::vector<wire::change_version> changes;
  const auto result = rollback_with(wire::done{}, wire::resolved{8}, "latest", changes);
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              HasSubstr("version 7 is withdrawn, but version 8, which was published meanwhile"));
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes.front().number, 7U);
  EXPECT_EQ(changes.front().change, wire::version_change::withdraw);
}

TEST(weights_cli_with_others, rollback_reports_that_the_version_below_has_ended) {
  std::vector<wire::change_version> changes;
  const wire::failure gone{0, gpushm::errc::no_such_segment, "it has ended", "look again"};
  const auto latest = rollback_with(wire::done{}, gone, "latest", changes);
  EXPECT_EQ(latest.status, exited(1));
  EXPECT_THAT(latest.err, HasSubstr("the version below it has ended meanwhile"));
  changes.clear();
  const auto prod = rollback_with(gone, gone, "prod", changes);
  EXPECT_EQ(prod.status, exited(1));
  EXPECT_EQ(prod.out, "");
  EXPECT_THAT(prod.err, HasSubstr("it has ended"));
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes.front().number, 6U);
  EXPECT_EQ(changes.front().alias, "prod");
}

INSTANTIATE_TEST_SUITE_P(on,
                         weights_cli,
                         ::testing::Values(where::host, where::fake, where::real),
                         name_of);

}  // namespace
}  // namespace gpushm_tests
