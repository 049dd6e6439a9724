// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>

#include "checks.hpp"
#include "machine_facts.hpp"
#include "program_run.hpp"
#include "support/child_process.hpp"
#include "support/duration.hpp"
#include "support/stop_signal.hpp"

namespace gpushm::selftest {

namespace {

using clock = std::chrono::steady_clock;

constexpr int exit_ok = 0;
constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

struct arguments {
  std::string out;
  std::vector<std::string> only;
  bool list = false;
  bool bench = false;
  bool facts = false;
};

// In a process of its own: a driver that hangs must not hang the whole test.
json facts_of_machine() {
  const program_result ended =
      run_program({app::executable_path(), "--facts"}, {}, std::chrono::minutes(2));
  const std::size_t start = ended.output.find('{');
  json facts = start == std::string::npos ? json(nullptr)
                                          : json::parse(ended.output.substr(start), nullptr, false);
  if (!ended.success() || !facts.is_object()) {
    // The driver is what can fail here; everything else can still be checked.
    const std::string problem = "asking the driver: " + ended.text();
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

std::string last_lines(const std::string& text, int count) {
  std::size_t start = text.size();
  for (int i = 0; i <= count && start != 0 && start != std::string::npos; ++i) {
    start = text.rfind('\n', start - 1);
  }
  return start == std::string::npos || start == 0 ? text : text.substr(start + 1);
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
    std::cerr << "--- the end of what it printed ---\n" << last_lines(result.output, 40) << "---\n";
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

int run_checks(const std::vector<check>& checks, const arguments& asked, const json& facts) {
  const app::stop_signal stop;
  json results = json::array();
  std::map<verdict, int> counts;
  for (const check& one : checks) {
    if (!selected(one.name, asked.only)) {
      continue;
    }
    const auto start = clock::now();
    outcome result =
        stop.pending() ? outcome{verdict::failed, "interrupted", nullptr, {}} : one.run();
    const auto took = clock::now() - start;
    ++counts[result.result];
    print_result(one.name, result, took);
    json entry{{"name", one.name},
               {"result", to_string(result.result)},
               {"detail", result.detail},
               {"seconds", std::chrono::duration<double>(took).count()},
               {"data", std::move(result.data)}};
    if (result.result == verdict::failed) {
      entry["output"] = last_lines(result.output, 400);
    }
    results.push_back(std::move(entry));
  }
  if (results.empty()) {
    std::cerr << "gpushm-selftest: no check has such a name (see --list)\n";
    return exit_usage;
  }
  const bool good = counts[verdict::failed] == 0;
  std::cout << "\n"
            << counts[verdict::passed] << " passed, " << counts[verdict::failed] << " failed, "
            << counts[verdict::skipped] << " skipped" << std::endl;
  if (!asked.out.empty()) {
    const json document{{"gpushm_version", GPUSHM_VERSION},
                        {"machine", facts},
                        {"passed", counts[verdict::passed]},
                        {"failed", counts[verdict::failed]},
                        {"skipped", counts[verdict::skipped]},
                        {"checks", std::move(results)}};
    std::ofstream file(asked.out);
    file << document.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
    file.close();
    if (!file) {
      std::cerr << "gpushm-selftest: cannot write " << asked.out << "\n";
      return exit_failed;
    }
  }
  return good ? exit_ok : exit_failed;
}

int run(const arguments& asked) {
  if (asked.facts) {
    std::cout << machine_facts().dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
    return exit_ok;
  }
  const program_tree tree;
  const json facts = facts_of_machine();
  const std::vector<check> checks = all_checks(tree, facts, asked.bench);
  if (asked.list) {
    for (const check& one : checks) {
      std::cout << one.name << "\n";
    }
    return exit_ok;
  }
  print_facts(facts);
  return run_checks(checks, asked, facts);
}

}  // namespace

}  // namespace gpushm::selftest

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  gpushm::selftest::arguments asked;
  CLI::App app("Runs every check of gpushm that this machine can run.", "gpushm-selftest");
  app.add_option("--out", asked.out, "Write the results to this file, as JSON")->type_name("FILE");
  app.add_option("--only", asked.only, "Run checks whose names begin with this; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_flag("--list", asked.list, "List the checks and run none");
  app.add_flag("--bench", asked.bench, "Run the benchmarks too");
  app.add_flag("--facts", asked.facts, "Print what is known of this machine and run nothing")
      ->group("");
  try {
    app.parse(argc, argv);
    return gpushm::selftest::run(asked);
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
