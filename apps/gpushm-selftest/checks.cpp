// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/checks.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "apps/gpushm-selftest/abi_check.hpp"
#include "apps/gpushm-selftest/demo_check.hpp"
#include "apps/gpushm-selftest/gtest_check.hpp"
#include "apps/gpushm-selftest/program_run.hpp"

namespace gpushm::selftest {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using words = std::vector<std::string>;

struct duration_of {
  std::string_view check;
  seconds taken;
};

// Measured on two H200 (results/README.md). Checks that are not listed take a few seconds.
constexpr seconds usual_duration{2};
constexpr std::array known_durations{
    duration_of{"abi", seconds(1)},
    duration_of{"conformance.fake", seconds(10)},
    duration_of{"conformance.fake-mig", seconds(9)},
    duration_of{"conformance.real", seconds(95)},
    duration_of{"fence.fake", seconds(12)},
    duration_of{"fence.real", seconds(20)},
    duration_of{"test.agent_share_test", seconds(7)},
    duration_of{"test.cdi_hook_test", seconds(45)},
    duration_of{"test.cdi_share_test", seconds(4)},
    duration_of{"test.death_test", seconds(86)},
    duration_of{"test.doctor_cli_test", seconds(16)},
    duration_of{"test.exchange_cli_test", seconds(5)},
    duration_of{"test.explain_topo_cli_test", seconds(8)},
    duration_of{"test.gpushm_cdi_documents_test", seconds(8)},
    duration_of{"test.gpushm_core_heap_test", seconds(4)},
    duration_of{"test.gpushm_core_test", seconds(4)},
    duration_of{"test.gpushm_import_cache_test", seconds(4)},
    duration_of{"test.gpushm_inspect_test", seconds(4)},
    duration_of{"test.gpushm_wire_test", seconds(8)},
    duration_of{"test.hostile_test", seconds(125)},
    duration_of{"test.isolation_test", seconds(19)},
    duration_of{"test.matrix_container_test", seconds(25)},
    duration_of{"test.scale_test", seconds(4)},
    duration_of{"test.share_container_test", seconds(8)},
    duration_of{"test.share_test", seconds(122)},
    duration_of{"test.share_torch_test", seconds(55)},
    duration_of{"test.trial_test", seconds(5)},
};

seconds expected_duration(std::string_view name) {
  for (const duration_of& known : known_durations) {
    if (known.check == name) {
      return known.taken;
    }
  }
  return name.starts_with("bench.") ? seconds(20) : usual_duration;
}

class collector {
 public:
  collector(const program_tree& tree, const json& facts) : tree_(tree), facts_(facts) {}

  std::vector<check> collect(bool benchmarks) {
    add("abi",
        [this_tree = &tree_](milliseconds limit) { return run_abi_check(*this_tree, limit); });
    add_demos();
    add_fence();
    add_conformance();
    add_tests();
    if (benchmarks) {
      for (const std::string& name : tree_.with_prefix("gpushm_bench_")) {
        add("bench." + name.substr(std::string("gpushm_bench_").size()),
            [environment = tree_.environment(), program = *tree_.find(name)](milliseconds limit) {
              return run_benchmark(program, environment, limit);
            });
      }
    }
    std::stable_sort(checks_.begin(), checks_.end(), [](const check& a, const check& b) {
      return a.place < b.place;
    });
    return std::move(checks_);
  }

 private:
  void add(std::string name, std::function<outcome(milliseconds)> run, bool repeatable = false) {
    const seconds expected = expected_duration(name);
    checks_.push_back({std::move(name), expected, expected, repeatable, std::move(run)});
  }

  void add_skipped(const std::string& name, const std::string& reason) {
    add(name, [reason](milliseconds) { return skipped(reason); });
    checks_.back().expected = checks_.back().place = seconds(0);
  }

  // Names the missing program: `name`, or the one for fake GPUs.
  static outcome missing(const std::optional<std::string>& program, const std::string& name) {
    return skipped((program ? "run-with-fake-gpus" : name) + " is missing");
  }

  // The prefix of a command line that makes fake GPUs visible; nullopt if the program for that is
  // missing.
  [[nodiscard]] std::optional<words> on_fakes(words options) const {
    const auto program = tree_.find("run-with-fake-gpus");
    if (!program) {
      return std::nullopt;
    }
    options.insert(options.begin(), *program);
    options.emplace_back("--");
    return options;
  }

  void add_demo(const std::string& name,
                const std::optional<words>& before,
                const words& arguments) {
    const auto program = tree_.find("gpushm");
    add(name, [environment = tree_.environment(), program, before, arguments](milliseconds limit) {
      if (!program || !before) {
        return missing(program, "gpushm");
      }
      return run_demo(*before, *program, arguments, environment, limit);
    });
  }

  void add_demos() {
    add_demo("demo.host", words{}, {"--device", "host"});
    add_demo("demo.host.isolated", words{}, {"--device", "host", "--isolated"});
    const auto fakes = on_fakes({"--gpus", "2", "--size", "256MiB"});
    add_demo("demo.fake", fakes, {"--device", "0", "--size", "64MiB"});
    add_demo("demo.fake.isolated", fakes, {"--device", "0", "--size", "64MiB", "--isolated"});
    add_demo(
        "demo.fake.peer", fakes, {"--device", "0", "--consumer-device", "1", "--size", "64MiB"});
    const json& cuda = facts_.at("cuda");
    const json& gpus = cuda.at("gpus");
    if (gpus.empty()) {
      const json& problem = cuda.at("problem");
      const std::string reason =
          problem.is_string() ? problem.get<std::string>() : "no GPU is visible";
      for (const char* name : {"demo.gpu0", "demo.gpu0.isolated"}) {
        add_skipped(name, reason);
      }
    }
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const std::string ordinal = std::to_string(i);
      add_demo("demo.gpu" + ordinal, words{}, {"--device", ordinal});
      add_demo(fmt::format("demo.gpu{}.isolated", ordinal),
               words{},
               {"--device", ordinal, "--isolated"});
    }
    if (gpus.size() < 2) {
      const std::string reason = fmt::format("needs two GPUs, {} visible", gpus.size());
      for (const char* name : {"demo.peer", "demo.peer.isolated"}) {
        add_skipped(name, reason);
      }
      return;
    }
    const words peers{"--device", "0", "--consumer-device", "1"};
    add_demo("demo.peer", words{}, peers);
    add_demo("demo.peer.isolated", words{}, {peers[0], peers[1], peers[2], peers[3], "--isolated"});
  }

  // Writers killed while their GPU is working; also in the quick self-test.
  void add_fence() {
    const auto program = tree_.find("gpushm_fence_proof");
    const auto add_one = [&](const std::string& name,
                             const std::optional<words>& before,
                             const std::string& rounds) {
      add(name, [environment = tree_.environment(), program, before, rounds](milliseconds limit) {
        if (!program || !before) {
          return missing(program, "gpushm_fence_proof");
        }
        return run_proof(*before, *program, {"--rounds", rounds}, environment, limit);
      });
      checks_.back().place = usual_duration;
    };
    add_one("fence.fake", on_fakes({"--gpus", "2", "--size", "1GiB"}), "20");
    if (facts_.at("cuda").at("gpus").empty()) {
      add_skipped("fence.real", "no GPU is visible to this process");
      return;
    }
    add_one("fence.real", words{}, "20");
  }

  void add_conformance() {
    const auto program = tree_.find("gpushm_conformance");
    const auto add_one = [&](const std::string& name, const std::optional<words>& before) {
      add(name, [environment = tree_.environment(), program, before](milliseconds limit) {
        if (!program || !before) {
          return missing(program, "gpushm_conformance");
        }
        return run_gtest(*before, *program, environment, limit);
      });
    };
    // Without a driver only the tests of host memory run, so the check has a different name.
    const bool real = !facts_.at("cuda").at("gpus").empty();
    add_one(real ? "conformance.real" : "conformance.host", words{});
    if (!real) {
      add_skipped("conformance.real", "no GPU is visible to this process");
    }
    add_one("conformance.fake", on_fakes({"--gpus", "2", "--size", "4GiB"}));
    add_one("conformance.fake-mig", on_fakes({"--mig", "2", "--size", "4GiB"}));
  }

  void add_tests() {
    for (const std::string& name : tree_.with_suffix("_test")) {
      const std::string label = tree_.label_of(name);
      const bool containers = label.starts_with("container");
      // The same command line as in CTest.
      const auto before =
          name.ends_with("_fake_test") ? on_fakes({"--gpus", "2", "--size", "64MiB"}) : words{};
      const std::string full_name = "test." + name;
      if (containers && ::geteuid() != 0) {
        add_skipped(full_name, "creating containers needs root");
      } else if (containers && !find_in_path("runc")) {
        add_skipped(full_name, "runc is not installed");
      } else if (!before) {
        add_skipped(full_name, "run-with-fake-gpus is missing");
      } else {
        add(
            full_name,
            [environment = tree_.environment(), before, program = *tree_.find(name)](
                milliseconds limit) { return run_gtest(*before, program, environment, limit); },
            label.starts_with("unit") || label.starts_with("process"));
      }
    }
  }

  const program_tree& tree_;
  const json& facts_;
  std::vector<check> checks_;
};

}  // namespace

std::string_view to_string(verdict value) noexcept {
  switch (value) {
    case verdict::passed:
      return "passed";
    case verdict::failed:
      return "failed";
    case verdict::skipped:
      return "skipped";
  }
  return "unknown";
}

std::vector<check> all_checks(const program_tree& tree, const json& facts, bool benchmarks) {
  return collector(tree, facts).collect(benchmarks);
}

}  // namespace gpushm::selftest
