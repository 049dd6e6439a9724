// SPDX-License-Identifier: Apache-2.0
// Measures, for each kind of death of a process whose GPU work writes shared memory, when its
// socket ends, when its pidfd becomes readable, when its life pipe is closed, and when the memory
// changes for the last time. Exits with 1 if memory changed after pidfd and life pipe in a case in
// which they are a fence, or if a victim did not write.
//
//   gpushm_fence_rounds [--rounds N] [--only PREFIX[,PREFIX...]] [--json FILE] [--list]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/fence/cases.hpp"
#include "tests/fence/command_line.hpp"
#include "tests/fence/victim.hpp"
#include "tests/fence/watcher.hpp"

namespace {

using gpushm::fence_rounds::observation;

/// Minimum, median and maximum of the values, and the number of missing ones.
nlohmann::ordered_json spread(const std::vector<observation>& observations,
                              std::optional<double> observation::*of) {
  std::vector<double> values;
  for (const observation& one : observations) {
    if (one.*of) {
      values.push_back(*(one.*of));
    }
  }
  const std::size_t seen = values.size();
  auto result = gpushm::fence_rounds::spread(std::move(values));
  result["missing"] = observations.size() - seen;
  return result;
}

std::string text_of(const nlohmann::ordered_json& result) {
  if (!result.contains("max")) {
    return "never";
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.1f..%.1f%s",
                result["min"].get<double>(),
                result["max"].get<double>(),
                result["missing"].get<std::size_t>() == 0 ? "" : " (some never)");
  return text.data();
}

bool is_one_of(const gpushm::fence_rounds::setting& setting,
               const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return setting.name == name || setting.name.starts_with(name + "/");
  });
}

}  // namespace

int main(int argc, char** argv) try {
  using namespace gpushm::fence_rounds;
  if (argc == 3 && std::strcmp(argv[1], "--victim") == 0) {
    run_victim(from_text(argv[2]), 3);
  }
  if (argc == 2 && std::strcmp(argv[1], "--sleep") == 0) {
    ::alarm(60);
    ::pause();
    return 0;
  }
  const arguments wanted = parse(argc, argv, {.rounds = 8});
  const auto settings = all_settings();
  if (wanted.list) {
    for (const setting& one : settings) {
      std::cout << one.name << '\n';
    }
    return 0;
  }
  for (const std::string& name : wanted.only) {
    if (std::none_of(settings.begin(), settings.end(), [&](const setting& setting) {
          return is_one_of(setting, {name});
        })) {
      throw std::runtime_error("no case " + name + "; --list shows them");
    }
  }
  if (const std::string why = why_no_gpu(); !why.empty()) {
    std::cout << "no CUDA driver: " << why << '\n';
    return 0;
  }
  nlohmann::ordered_json report;
  report["rounds"] = wanted.rounds;
  report["cases"] = nlohmann::ordered_json::array();
  std::printf("%-28s %-18s %-18s %-18s %-18s %s\n",
              "milliseconds after the end",
              "socket",
              "pidfd",
              "life pipe",
              "last change",
              "changed after pidfd / both, of victims");
  bool held = true;
  for (const setting& one : settings) {
    if (!wanted.only.empty() && !is_one_of(one, wanted.only)) {
      continue;
    }
    std::vector<observation> seen;
    nlohmann::ordered_json entry;
    entry["case"] = one.name;
    try {
      for (unsigned round = 0; round < wanted.rounds; ++round) {
        const auto more = run_round(one);
        seen.insert(seen.end(), more.begin(), more.end());
      }
    } catch (const std::exception& why) {
      entry["failure"] = why.what();
      std::printf("%-28s %s\n", one.name.c_str(), why.what());
    }
    if (!seen.empty()) {
      const auto count = [&](auto&& which) {
        return static_cast<std::size_t>(std::count_if(seen.begin(), seen.end(), which));
      };
      entry["victims"] = seen.size();
      entry["driver_files"] = seen.front().files;
      entry["writing"] = count([](const observation& s) { return s.changes_before > 1; });
      entry["socket_end_ms"] = spread(seen, &observation::socket_end);
      entry["pidfd_ms"] = spread(seen, &observation::pidfd);
      entry["life_pipe_ms"] = spread(seen, &observation::life);
      entry["last_change_ms"] = spread(seen, &observation::last_change);
      entry["changed_after_pidfd"] =
          count([](const observation& s) { return s.changed_after_pidfd; });
      entry["changed_after_both"] =
          count([](const observation& s) { return s.changed_after_both; });
      held = held && entry["writing"] == seen.size() &&
             (!one.is_fenced || entry["changed_after_both"] == 0);
      if (seen.front().child_ended) {
        entry["last_change_after_child_ms"] = spread(seen, &observation::last_after_child);
      }
      std::printf("%-28s %-18s %-18s %-18s %-18s %zu / %zu of %zu (%zu were writing)\n",
                  one.name.c_str(),
                  text_of(entry["socket_end_ms"]).c_str(),
                  text_of(entry["pidfd_ms"]).c_str(),
                  text_of(entry["life_pipe_ms"]).c_str(),
                  text_of(entry["last_change_ms"]).c_str(),
                  entry["changed_after_pidfd"].get<std::size_t>(),
                  entry["changed_after_both"].get<std::size_t>(),
                  seen.size(),
                  entry["writing"].get<std::size_t>());
    }
    std::fflush(stdout);
    report["cases"].push_back(std::move(entry));
    if (!wanted.json.empty()) {
      std::ofstream(wanted.json) << report.dump(1) << '\n';
    }
  }
  return held ? 0 : 1;
} catch (const std::exception& why) {
  std::cerr << "gpushm_fence_rounds: " << why.what() << '\n';
  return 2;
}
