// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "apps/gpushm-selftest/checks.hpp"
#include "apps/gpushm-selftest/machine_facts.hpp"
#include "apps/gpushm-selftest/program_run.hpp"
#include "apps/gpushm-selftest/repeat.hpp"
#include "apps/gpushm-selftest/results.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/process/child_process.hpp"

namespace gpushm::selftest {

namespace {

using clock = std::chrono::steady_clock;

constexpr int exit_ok = 0;
constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

constexpr std::chrono::seconds quick_time{60};
constexpr std::chrono::seconds quick_limit{20};

struct arguments {
  std::string out;
  std::vector<std::string> only;
  bool list = false;
  bool bench = false;
  bool quick = false;
  int repeat = 0;  ///< 0: each check once
  int jobs = 1;
  std::optional<std::chrono::milliseconds> limit;  ///< nullopt: each check's own limit
  bool facts = false;
};

// Runs in a child process, so that a hanging driver does not hang the self-test.
json facts_of_machine() {
  const program_result ended =
      run_program({base::executable_path(), "--facts"}, {}, std::chrono::minutes(2));
  const std::size_t start = ended.output.find('{');
  json facts = start == std::string::npos ? json(nullptr)
                                          : json::parse(ended.output.substr(start), nullptr, false);
  if (!ended.success() || !facts.is_object()) {
    // Only the driver can fail here; everything else can still be checked.
    const std::string problem = "query the driver: " + ended.text();
    return json{{"cuda", {{"problem", problem}, {"gpus", json::array()}}}, {"problem", problem}};
  }
  return facts;
}

bool selected(const std::string& name, const std::vector<std::string>& only) {
  for (const std::string& prefix : only) {
    if (name.starts_with(prefix)) {
      return true;
    }
  }
  return only.empty();
}

// One line of at most 100 columns.
void print_result(const std::string& name, const outcome& result, clock::duration took) {
  constexpr std::size_t columns = 100;
  std::array<char, 96> head{};
  std::snprintf(head.data(),
                head.size(),
                "%-7s  %-32s  %8s  ",
                std::string(to_string(result.result)).c_str(),
                name.c_str(),
                app::duration_text(took).c_str());
  std::string line = head.data() + result.detail;
  line.resize(std::min(line.find('\n'), line.size()));
  if (line.size() > columns) {
    line.resize(columns - 3);
    line += "...";
  }
  std::cout << line << std::endl;
  if (result.result == verdict::failed && !result.output.empty()) {
    std::cerr << "--- last lines of its output ---\n" << last_lines(result.output, 40) << "---\n";
  }
}

void print_facts(const json& facts) {
  const auto text = [&](const char* key) { return facts.value(key, std::string("unknown")); };
  std::cout << "gpushm-selftest " << GPUSHM_VERSION << ", Linux " << text("kernel") << ", glibc "
            << text("glibc") << ", " << text("cpu") << "\n";
  const json& cuda = facts.at("cuda");
  for (const json& gpu : cuda.at("gpus")) {
    std::cout << "GPU " << gpu.at("ordinal") << ": " << gpu.at("name").get<std::string>() << "\n";
  }
  if (cuda.at("gpus").empty()) {
    const json& problem = cuda.at("problem");
    std::cout << "no GPU\n" << (problem.is_string() ? problem.get<std::string>() + "\n" : "");
  } else {
    std::cout << "CUDA " << cuda.at("version").dump() << ", driver "
              << facts.at("nvml").at("driver_version").dump() << "\n";
  }
  std::cout << std::endl;
}

// The time limit of one check.
std::chrono::milliseconds limit_of(const check& check, const arguments& given) {
  if (given.limit) {
    return *given.limit;
  }
  if (given.quick) {
    return quick_limit;
  }
  // With --repeat, all cores are busy.
  return std::max<std::chrono::milliseconds>(std::chrono::minutes(3), check.expected * 8) *
         (given.repeat != 0 ? 3 : 1);
}

void print_not_run(const std::vector<std::string>& names) {
  if (names.empty()) {
    return;
  }
  std::cout << "not run:";
  for (const std::string& name : names) {
    std::cout << " " << name;
  }
  std::cout << std::endl;
}

int run_checks(const std::vector<check>& checks, const arguments& given, const json& facts) {
  const app::stop_signal stop;
  const auto begin = clock::now();
  std::vector<std::string> names;
  names.reserve(checks.size());
  for (const check& one : checks) {
    names.push_back(one.name);
  }
  results results(given.out, facts, std::move(names));
  for (const check& one : checks) {
    const auto start = clock::now();
    // The longest checks are last.
    if (stop.pending() || (given.quick && start - begin + one.expected > quick_time)) {
      break;
    }
    const auto limit = limit_of(one, given);
    const outcome ended =
        given.repeat != 0 ? run_repeatedly(one, given.repeat, given.jobs, limit) : one.run(limit);
    const auto took = clock::now() - start;
    // Write it first, so that the file contains every printed result.
    results.add(one.name, ended, took);
    print_result(one.name, ended, took);
  }
  std::cout << "\n"
            << results.count(verdict::passed) << " passed, " << results.count(verdict::failed)
            << " failed, " << results.count(verdict::skipped) << " skipped"
            << (stop.pending() ? ", then interrupted" : "") << std::endl;
  print_not_run(results.not_run());
  if (stop.pending()) {
    return exit_failed;
  }
  results.finish();
  return results.count(verdict::failed) == 0 ? exit_ok : exit_failed;
}

int run(const arguments& given) {
  if (given.facts) {
    std::cout << machine_facts().dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
    return exit_ok;
  }
  const program_tree tree;
  const json facts = facts_of_machine();
  std::vector<check> checks = all_checks(tree, facts, given.bench);
  std::erase_if(checks, [&](const check& check) {
    return !selected(check.name, given.only) || (given.repeat != 0 && !check.repeatable);
  });
  if (given.list) {
    for (const check& one : checks) {
      std::cout << one.name << "\n";
    }
    return exit_ok;
  }
  if (checks.empty()) {
    std::cerr << "gpushm-selftest: no check has that name (see --list)\n";
    return exit_usage;
  }
  print_facts(facts);
  return run_checks(checks, given, facts);
}

}  // namespace

}  // namespace gpushm::selftest

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  gpushm::selftest::arguments given;
  CLI::App app("Runs every check of gpushm that this machine can run.", "gpushm-selftest");
  app.add_option("--out", given.out, "Write the results to this file, as JSON")->type_name("FILE");
  app.add_option("--only", given.only, "Run checks whose names begin with this; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_flag("--list", given.list, "List the checks and run none");
  app.add_flag("--bench", given.bench, "Run the benchmarks too");
  CLI::Option* quick = app.add_flag(
      "--quick", given.quick, "Run for one minute: as many checks as fit, the short ones first");
  app.add_option("--repeat",
                 given.repeat,
                 "Run every process and unit test program N times, on all cores concurrently")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->excludes(quick);
  given.jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  app.add_option(
         "--jobs", given.jobs, "With --repeat: number of concurrent runs (default: one per core)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option_function<std::string>(
         "--time-limit",
         [&given](const std::string& text) {
           given.limit = gpushm::app::parse_duration(text);
           if (!given.limit || given.limit->count() == 0) {
             throw CLI::ValidationError("--time-limit: not a duration such as 90s or 5m: " + text);
           }
         },
         "Fail a check that takes longer")
      ->type_name("DURATION");
  app.add_flag("--facts", given.facts, "Print the facts about this machine and run nothing")
      ->group("");
  try {
    app.parse(argc, argv);
    return gpushm::selftest::run(given);
  } catch (const CLI::Success& shown) {
    return app.exit(shown);
  } catch (const CLI::ParseError& failure) {
    std::cerr << "gpushm-selftest: " << failure.what() << "\n";
    return gpushm::selftest::exit_usage;
  } catch (const std::exception& failure) {
    std::cerr << "gpushm-selftest: " << failure.what() << "\n";
    return gpushm::selftest::exit_failed;
  }
}
