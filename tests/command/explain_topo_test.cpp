// SPDX-License-Identifier: Apache-2.0
// `gpushm explain` and `gpushm topo` as programs: valid and invalid usage, on recorded machines, on
// fake GPUs, and with a broker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "tests/support/broker_process/cli.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/machines/machines.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class explain_topo : public ::testing::Test {
 protected:
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    auto command = cli_.command(std::move(arguments));
    if (fake_) {
      for (const auto& each : fake_->environment()) {
        command.env.push_back(each);
      }
    }
    return gpushm_testing::run_program(command, seconds(60));
  }
  /// Runs it with `input` on standard input, through a shell because the harness does not support
  /// that.
  [[nodiscard]] run_result run_with_input(const std::string& input,
                                          const std::vector<std::string>& arguments) const {
    const std::string file = write("input", input);
    auto command = cli_.command(arguments);
    std::vector<std::string> shell{
        "/bin/sh", "-c", "file=$1; shift; exec \"$@\" < \"$file\"", "sh"};
    shell.push_back(file);
    shell.insert(shell.end(), command.argv.begin(), command.argv.end());
    command.argv = shell;
    return gpushm_testing::run_program(command, seconds(60));
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::string path = cli_.directory() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  cli cli_;
  std::optional<gpushm::fake::fake_gpus> fake_;
};

json document_of(const run_result& result) {
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  return json::parse(result.out);
}

void expect_plain(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    for (const char c : line) {
      EXPECT_GE(static_cast<unsigned char>(c), 0x20U) << line;
    }
  }
}

// ---- wrong usage ----

TEST_F(explain_topo, wrong_usage_exits_with_2_and_prints_nothing) {
  const std::string recording = machine_path("dgx-h100");
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"explain"},
                                             {"explain", "--nosuch", "201"},
                                             {"explain", "-", "--from", "-"},
                                             {"explain", "201", "--here", "--from", recording},
                                             {"topo", "--svg", "--dot"},
                                             {"topo", "--svg", "--json"},
                                             {"topo", "extra"},
                                             {"topo", "--measure", "--from", recording}}) {
    const auto ran = run(wrong);
    EXPECT_EQ(ran.status, exited(2)) << ::testing::PrintToString(wrong) << ran.err;
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_THAT(ran.err, Not(IsEmpty()));
  }
}

TEST_F(explain_topo, invalid_recording_is_refused_with_next_step) {
  const std::string garbage = write("garbage", "\x01\x02 no json");
  const std::string other = write("other", R"({"segments":[]})");
  const std::string missing = cli_.directory() / "missing";
  for (const std::string command : {"explain", "topo"}) {
    std::vector<std::string> arguments{command};
    if (command == "explain") {
      arguments.emplace_back("201");
    }
    arguments.emplace_back("--from");
    for (const std::string& file : {garbage, other, missing}) {
      auto words = arguments;
      words.push_back(file);
      const auto ran = run(words);
      EXPECT_EQ(ran.status, exited(1)) << command << file;
      EXPECT_THAT(ran.out, IsEmpty());
      EXPECT_THAT(ran.err, HasSubstr("gpushm: read recording \"" + file + "\": "));
      EXPECT_THAT(ran.err, HasSubstr("(create one with \"gpushm doctor --json\""));
    }
  }
}

// ---- explain ----

TEST_F(explain_topo, error_is_explained) {
  const auto ran =
      run({"explain", "--here", "cudaIpcOpenMemHandle:", "invalid", "device", "context"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("invalid device context (CUDA_ERROR_INVALID_CONTEXT"));
  EXPECT_THAT(ran.out, HasSubstr("\n  1. most likely: Exporter and importer have the same PID"));
  EXPECT_THAT(ran.out, HasSubstr("\n     confirm: "));
  EXPECT_THAT(ran.out, HasSubstr("\n     fix:     "));
  EXPECT_THAT(ran.out, HasSubstr("Ordered for this machine"));
  expect_plain(ran.out);
}

TEST_F(explain_topo, every_rule_fits_100_columns) {
  // One line per error, all in one text; at most four are shown.
  for (const char* text : {"CUDA_ERROR_UNKNOWN",
                           "two pods landed on different nodes",
                           "unbound ResourceClaim",
                           "Bus error",
                           "NVRM: Xid (PCI:0000:3b:00): 79",
                           "pidfd_getfd: Operation not permitted",
                           "803"}) {
    const auto ran = run({"explain", "--from", machine_path("container-one-of-two"), text});
    EXPECT_EQ(ran.status, exited(0)) << text;
    expect_plain(ran.out);
  }
}

TEST_F(explain_topo, unknown_text_fails_with_next_step) {
  for (const char* text : {"hello", "4711"}) {
    // Shorter than the delay of the note about a slow driver, which would precede the message.
    const auto ran = run({"explain", "--driver-timeout", "2s", text});
    EXPECT_EQ(ran.status, exited(1));
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_THAT(ran.err, StartsWith("gpushm: no known error in this text"));
    EXPECT_THAT(ran.err, HasSubstr("gpushm doctor"));
  }
  const auto ran = run({"explain", "--json", "hello"});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_THAT(json::parse(ran.out).at("explanations"), SizeIs(0));
}

TEST_F(explain_topo, log_on_standard_input_is_read) {
  std::string log = "first line\n";
  for (int i = 0; i < 256; ++i) {
    log += static_cast<char>(i);
  }
  log += "\n\x1b[31mcudaIpcOpenMemHandle: \x1b[1minvalid argument\x1b[0m\x07\n";
  const auto ran = run_with_input(log, {"explain", "-"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("invalid argument (CUDA_ERROR_INVALID_VALUE"));
  EXPECT_THAT(ran.out, HasSubstr("\n  line 4: cudaIpcOpenMemHandle: invalid argument\n"));
  expect_plain(ran.out);

  const auto nothing = run_with_input("", {"explain", "-"});
  EXPECT_EQ(nothing.status, exited(1));
}

TEST_F(explain_topo, large_log_is_read_to_its_end) {
  const std::string log = "Bus error\n" + std::string(3UL << 20U, 'x') + "\ninvalid argument\n";
  const json document = document_of(run_with_input(log, {"explain", "-", "--json"}));
  EXPECT_FALSE(document.at("truncated"));
  ASSERT_THAT(document.at("explanations"), SizeIs(2));
  EXPECT_EQ(document.at("explanations")[0].at("rule"), "shm-small");
  EXPECT_EQ(document.at("explanations")[1].at("line_number"), 3);
}

std::string first_cause(const json& document) {
  return document.at("explanations").at(0).at("causes").at(0).at("id");
}

TEST_F(explain_topo, causes_are_ordered_for_the_machine) {
  const auto with = [&](const std::string& text, const std::string& machine) {
    return document_of(run({"explain", "--json", text, "--from", machine_path(machine)}));
  };
  EXPECT_EQ(first_cause(with("no CUDA-capable device is detected", "no-driver")),
            "container-without-gpu");
  EXPECT_EQ(first_cause(with("999", "uvm-drift")), "uvm-node");
  EXPECT_EQ(first_cause(with("803", "driver-mismatch")), "updated-not-restarted");
  EXPECT_EQ(first_cause(with("801", "gvisor")), "vgpu-or-sandbox");
  EXPECT_EQ(first_cause(with("invalid argument", "container-one-of-two")), "gpu-not-allowed");
  const json document = with("999", "uvm-drift");
  EXPECT_TRUE(document.at("machine").at("known"));
  EXPECT_THAT(document.at("explanations")[0].at("causes")[0].at("evidence").dump(),
              HasSubstr("uvm-major (problem): "));
  EXPECT_THAT(document.at("explanations")[0].at("causes")[0].at("share").get<double>(),
              ::testing::Gt(0.5));
}

TEST_F(explain_topo, text_alone_decides_unless_machine_is_given) {
  const std::string text = "CUDA driver version is insufficient for CUDA runtime version";
  const auto source = [&](const std::vector<std::string>& options) -> std::string {
    std::vector<std::string> arguments{"explain", "--json", text};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return document_of(run(arguments)).at("machine").at("source");
  };
  EXPECT_EQ(source({"--here"}), "here");
  EXPECT_EQ(source({"--from", machine_path("no-driver")}), "recording");
  if (document_of(run({"topo", "--json"})).at("gpus").empty()) {
    EXPECT_EQ(source({}), "none");
    const json document = document_of(run({"explain", "--json", text}));
    EXPECT_FALSE(document.at("machine").at("known"));
    EXPECT_THAT(document.at("machine").at("facts"), IsEmpty());
    EXPECT_EQ(first_cause(document), "old-driver");
    EXPECT_THAT(run({"explain", text}).out, HasSubstr("\nOrdered by the text alone. "));
  }
  EXPECT_EQ(first_cause(
                document_of(run({"explain", "--json", text, "--from", machine_path("no-driver")}))),
            "no-driver-found");
}

TEST_F(explain_topo, error_code_is_explained_by_its_section) {
  for (const char* text :
       {"no_such_segment", "NoSuchSegmentError", "gpushm.NoSuchSegmentError: x"}) {
    const auto ran = run({"explain", text});
    EXPECT_EQ(ran.status, exited(0)) << ran.err;
    EXPECT_THAT(ran.out,
                StartsWith("gpushm error no_such_segment, in Python "
                           "gpushm.NoSuchSegmentError (2)\n  The domain has no published"));
    EXPECT_THAT(ran.out, HasSubstr("fix:     Run gpushm ls."));
    expect_plain(ran.out);
  }
}

// ---- topo ----

TEST_F(explain_topo, recorded_machine_is_shown_in_each_format) {
  for (const std::string& name : machine_names()) {
    const std::string from = machine_path(name);
    const auto text = run({"topo", "--from", from});
    EXPECT_EQ(text.status, exited(0)) << text.err;
    expect_plain(text.out);
    const auto dot = run({"topo", "--dot", "--from", from});
    EXPECT_EQ(dot.status, exited(0)) << dot.err;
    EXPECT_THAT(dot.out, StartsWith("graph topology {\n"));
    const auto svg = run({"topo", "--svg", "--from", from});
    EXPECT_EQ(svg.status, exited(0)) << svg.err;
    EXPECT_THAT(svg.out, StartsWith("<?xml"));
    EXPECT_THAT(svg.out, ::testing::EndsWith("</svg>\n"));
    EXPECT_EQ(document_of(run({"topo", "--json", "--from", from})).at("gpus").size(),
              recorded_facts(name).gpus.size())
        << name;
  }
}

TEST_F(explain_topo, topo_json_is_replayed_with_measurements_and_segments) {
  json document = document_of(run({"topo", "--json", "--from", machine_path("dgx-h100")}));
  const std::string first = document.at("gpus")[0].at("uuid");
  const std::string second = document.at("gpus")[1].at("uuid");
  document["measured"].push_back({{"from", first},
                                  {"to", second},
                                  {"bytes_per_second", 397e9},
                                  {"copy_bytes", 1U << 28U},
                                  {"latency_ns", 2345.6},
                                  {"mapping_ns", 945'678.9},
                                  {"mapped_bytes", 1U << 28U},
                                  {"problem", ""}});
  document["segments"].push_back(
      {{"name", "w/llama"}, {"size_bytes", 1U << 30U}, {"device", second}});
  const std::string file = write("topo.json", document.dump());
  const auto text = run({"topo", "--from", file});
  EXPECT_EQ(text.status, exited(0)) << text.err;
  EXPECT_THAT(text.out, HasSubstr("397"));
  EXPECT_THAT(text.out, HasSubstr("2346"));
  EXPECT_THAT(text.out, HasSubstr("946"));
  EXPECT_THAT(text.out, HasSubstr("1    1 GiB  w/llama"));
  const json again = document_of(run({"topo", "--json", "--from", file}));
  EXPECT_EQ(again, document);
  EXPECT_EQ(run_with_input(document.dump(), {"topo", "--from", "-"}).out, text.out);

  document["measured"][0]["bytes_per_second"] = "fast";
  const auto wrong = run({"topo", "--from", write("wrong.json", document.dump())});
  EXPECT_EQ(wrong.status, exited(1));
  EXPECT_THAT(wrong.err,
              HasSubstr("\"measured\" or \"segments\" do not have the format of \"topo --json\""));
}

TEST_F(explain_topo, shows_gpus_and_segments_of_this_machine) {
  gpushm::fake::fake_gpus_options options;
  options.gpus = 2;
  fake_.emplace(options);
  const auto without = document_of(run({"topo", "--json"}));
  EXPECT_THAT(without.at("gpus"), SizeIs(2));
  EXPECT_THAT(without.at("segments"), SizeIs(0));

  auto broker = cli_.serve();
  const auto made = run({"create",
                         "kv/0",
                         "--size",
                         "1MiB",
                         "--fill",
                         "7",
                         "--device",
                         "host",
                         "--lifetime",
                         "persistent"});
  ASSERT_EQ(made.status, exited(0)) << made.err;
  const auto text = run({"topo"});
  EXPECT_EQ(text.status, exited(0)) << text.err;
  EXPECT_THAT(text.out, HasSubstr("host  1 MiB  kv/0\n"));
  EXPECT_THAT(run({"topo", "--svg"}).out, HasSubstr("Segments not on these GPUs: kv/0 1 MiB"));
}

TEST_F(explain_topo, missing_broker_is_noted_and_succeeds) {
  const auto ran = run({"topo", "--socket", cli_.directory() / "no-broker"});
  EXPECT_EQ(ran.status, exited(0));
  EXPECT_THAT(ran.err, HasSubstr("gpushm: no segments are shown: connect \""));
  EXPECT_THAT(run({"topo"}).err, IsEmpty());
}

}  // namespace
}  // namespace gpushm_tests
