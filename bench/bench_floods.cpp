// SPDX-License-Identifier: Apache-2.0
// Latency of a well-behaved client while others flood its broker: for each flood a broker process,
// a good client and attackers, each on separate CPUs if there are 8 or more, and one line with the
// good client's p50 and p99 without and with the flood, the longest wait, and the ratio of the
// p99s. Reports ratios measured in one run; asserts nothing. Run as root, so that attackers have
// another uid.
//
//   gpushm_floods [--seconds N] [--only NAME[,NAME...]] [--attackers N] [--json FILE]
//   [--list]

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/floods.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/good_client.hpp"

namespace {

using gpushm_testing::forked_process;
using gpushm_testing::good_figures;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr unsigned cores_to_pin = 8;
constexpr uid_t good_uid = 1001;

struct settings {
  unsigned window_seconds = 5;
  unsigned attackers = 1;
  std::vector<std::string> only;
  std::string json;
};

/// CPUs of each process; empty: any.
struct placement {
  std::vector<unsigned> broker;
  std::vector<unsigned> good;
  std::vector<unsigned> attackers;
};

struct result {
  std::string name;
  std::string what;
  good_figures quiet;
  good_figures flooded;
  std::uint64_t growth_bytes = 0;
  bool survived = true;
  [[nodiscard]] double ratio() const {
    return quiet.p99.count() > 0
               ? static_cast<double>(flooded.p99.count()) / static_cast<double>(quiet.p99.count())
               : 0.0;
  }
};

double in_milliseconds(std::chrono::nanoseconds value) {
  return static_cast<double>(value.count()) / 1e6;
}

std::vector<unsigned> usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::vector<unsigned> result;
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) {
    for (unsigned i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &cores)) {
        result.push_back(i);
      }
    }
  }
  return result;
}

placement place() {
  const auto cores = usable_cores();
  if (cores.size() < cores_to_pin) {
    return {};
  }
  // Two for the broker: its thread and its helpers.
  return {{cores[0], cores[1]}, {cores[2]}, {cores.begin() + 3, cores.end()}};
}

/// `gpushm serve` on separate cores.
class serving {
 public:
  explicit serving(const std::vector<unsigned>& cores)
      : process_(gpushm_testing::child::start(command(directory_ / "socket", cores))) {
    process_.wait_for_line("serving domain", seconds(20));
  }
  [[nodiscard]] std::string socket() const { return directory_ / "socket"; }
  [[nodiscard]] bool running() { return process_.running(); }
  [[nodiscard]] std::uint64_t memory() const {
    return gpushm_testing::anonymous_bytes(process_.pid()) +
           gpushm_testing::shared_memory_bytes({process_.pid()}, "gpushm");
  }

 private:
  static gpushm_testing::spawn_options command(const std::string& socket,
                                               const std::vector<unsigned>& cores) {
    std::vector<std::string> argv;
    if (!cores.empty()) {
      std::string list;
      for (const auto core : cores) {
        list += (list.empty() ? "" : ",") + std::to_string(core);
      }
      argv = {"taskset", "--cpu-list", list};
    }
    argv.insert(
        argv.end(),
        {gpushm_testing::own_program("gpushm"), "serve", "--socket", socket, "--mode", "0666"});
    return {.argv = std::move(argv)};
  }

  gpushm_testing::temp_dir directory_{0755};
  gpushm_testing::child process_;
};

result run(const gpushm_testing::flood& flood, const settings& chosen, const placement& where) {
  const bool root = ::geteuid() == 0;
  const milliseconds window(chosen.window_seconds * 1000U);
  serving broker(where.broker);
  gpushm_testing::good_client good(
      broker.socket(),
      {.process = {.uid = root ? good_uid : static_cast<uid_t>(-1), .cores = where.good}});
  result measured{std::string(flood.name), std::string(flood.what), {}, {}, 0, true};
  (void)good.measure(milliseconds(500));  // warm-up
  measured.quiet = good.measure(window);
  const auto before = broker.memory();
  // Attackers with a set-up do it before the window; a longer one overlaps the window.
  constexpr milliseconds set_up{700};
  std::vector<forked_process> attackers;
  for (unsigned i = 0; i < chosen.attackers; ++i) {
    attackers.push_back(forked_process::start(
        {.uid = root ? gpushm_testing::hostile_uid : static_cast<uid_t>(-1),
         .cores = where.attackers,
         .niceness = where.attackers.empty() ? 5 : 0},
        [&](forked_process::parent_link&) {
          flood.run(broker.socket(), gpushm_testing::clock::now() + set_up + window);
        }));
  }
  gpushm_testing::sleep_for(set_up);
  good.begin();
  const auto end = gpushm_testing::clock::now() + window;
  while (gpushm_testing::clock::now() < end && broker.running()) {
    gpushm_testing::sleep_for(milliseconds(100));
    if (broker.running()) {
      const auto now = broker.memory();
      measured.growth_bytes = std::max(measured.growth_bytes, now > before ? now - before : 0);
    }
  }
  measured.flooded = good.end();
  measured.survived = broker.running();
  return measured;
}

void print_head(const placement& where) {
  std::printf("%s; %s\n",
              where.good.empty() ? "fewer than 8 CPUs: nothing is pinned"
                                 : "broker, good client and attackers on separate CPUs",
              ::geteuid() == 0 ? "attackers run under another uid"
                               : "not root: attackers share the good client's uid");
  if (const auto tenant = gpushm_testing::one_tenant_here()) {
    std::printf("all processes are one tenant here (%s): shares do not protect the good client\n",
                tenant->c_str());
  }
  std::printf("%-18s %9s %9s %9s %9s %10s %8s %8s  %s\n",
              "flood",
              "quiet p50",
              "quiet p99",
              "p50",
              "p99",
              "worst (ms)",
              "p99 x",
              "MiB",
              "");
}

void print(const result& result) {
  std::printf("%-18s %9.3f %9.3f %9.3f %9.3f %10.1f %8.1f %8llu  %s\n",
              result.name.c_str(),
              in_milliseconds(result.quiet.p50),
              in_milliseconds(result.quiet.p99),
              in_milliseconds(result.flooded.p50),
              in_milliseconds(result.flooded.p99),
              in_milliseconds(result.flooded.worst),
              result.ratio(),
              static_cast<unsigned long long>(result.growth_bytes >> 20U),
              !result.survived         ? "the broker died"
              : result.flooded.dropped ? "the good client was dropped"
                                       : "");
  std::fflush(stdout);
}

void write_figures(std::ostream& out, const char* name, const good_figures& figures) {
  out << "\"" << name << "\": {\"answers\": " << figures.replies
      << ", \"failures\": " << figures.failures << ", \"p50_ms\": " << in_milliseconds(figures.p50)
      << ", \"p99_ms\": " << in_milliseconds(figures.p99)
      << ", \"worst_ms\": " << in_milliseconds(figures.worst) << "}";
}

void write_json(const std::string& path,
                const std::vector<result>& results,
                const settings& chosen,
                const placement& where) {
  std::ofstream out(path);
  out << "{\"cpus\": " << usable_cores().size()
      << ", \"pinned\": " << (where.good.empty() ? "false" : "true")
      << ", \"uids_differ\": " << (::geteuid() == 0 ? "true" : "false")
      << ", \"seconds\": " << chosen.window_seconds << ", \"attackers\": " << chosen.attackers
      << ", \"floods\": [";
  const char* separator = "\n  ";
  for (const auto& flood : results) {
    out << separator << "{\"name\": \"" << flood.name << "\", \"what\": \"" << flood.what << "\", ";
    write_figures(out, "quiet", flood.quiet);
    out << ", ";
    write_figures(out, "flooded", flood.flooded);
    out << ", \"p99_ratio\": " << flood.ratio()
        << ", \"broker_growth_bytes\": " << flood.growth_bytes
        << ", \"broker_survived\": " << (flood.survived ? "true" : "false")
        << ", \"good_client_dropped\": " << (flood.flooded.dropped ? "true" : "false") << "}";
    separator = ",\n  ";
  }
  out << "\n]}\n" << std::flush;
  if (!out) {
    throw std::runtime_error("cannot write " + path);
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= text.size();) {
    const auto comma = std::min(text.find(',', from), text.size());
    parts.push_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

/// Returns nullopt if there is nothing to run.
std::optional<settings> parse(int argc, char** argv) {
  settings chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--list") {
      for (const auto& flood : gpushm_testing::floods()) {
        std::printf("%-18s %s\n", std::string(flood.name).c_str(), std::string(flood.what).c_str());
      }
      return std::nullopt;
    }
    if (i + 1 == argc) {
      throw std::runtime_error(
          "usage: gpushm_floods [--seconds N] [--only NAME[,NAME...]] "
          "[--attackers N] [--json FILE] [--list]");
    }
    const std::string value = argv[++i];
    if (option == "--seconds") {
      chosen.window_seconds = static_cast<unsigned>(std::stoul(value));
    } else if (option == "--attackers") {
      chosen.attackers = static_cast<unsigned>(std::stoul(value));
    } else if (option == "--only") {
      chosen.only = split(value);
    } else if (option == "--json") {
      chosen.json = value;
    } else {
      throw std::runtime_error("unknown option " + option);
    }
  }
  for (const auto& name : chosen.only) {
    if (gpushm_testing::find_flood(name) == nullptr) {
      throw std::runtime_error("unknown flood " + name + " (--list names them)");
    }
  }
  return chosen;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto chosen = parse(argc, argv);
    if (!chosen) {
      return 0;
    }
    const auto where = place();
    print_head(where);
    std::vector<result> results;
    for (const auto& flood : gpushm_testing::floods()) {
      const auto& only = chosen->only;
      if (only.empty() || std::find(only.begin(), only.end(), flood.name) != only.end()) {
        results.push_back(run(flood, *chosen, where));
        print(results.back());
        if (!chosen->json.empty()) {
          write_json(chosen->json, results, *chosen, where);
        }
      }
    }
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "gpushm_floods: " << problem.what() << '\n';
    return 1;
  }
}
