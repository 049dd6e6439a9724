// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <unistd.h>

#include <chrono>

#include "abi_check.hpp"
#include "demo_check.hpp"
#include "gtest_check.hpp"
#include "program_run.hpp"

namespace gpushm::selftest {

namespace {

using std::chrono::minutes;
using words = std::vector<std::string>;

constexpr minutes conformance_timeout{15};
constexpr minutes test_timeout{15};

class collector {
 public:
  collector(const program_tree& tree, const json& facts) : tree_(tree), facts_(facts) {}

  std::vector<check> collect(bool benchmarks) {
    add("abi", [this_tree = &tree_] { return run_abi_check(*this_tree); });
    add_demos();
    add_conformance();
    add_tests();
    if (benchmarks) {
      for (const std::string& name : tree_.with_prefix("gpushm_bench_")) {
        add("bench." + name.substr(std::string("gpushm_bench_").size()),
            [environment = tree_.environment(), program = *tree_.find(name)] {
              return run_benchmark(program, environment);
            });
      }
    }
    return std::move(checks_);
  }

 private:
  void add(std::string name, std::function<outcome()> run) {
    checks_.push_back({std::move(name), std::move(run)});
  }

  // What to put in front of a program so that it finds fake GPUs; nothing when the program for that
  // is missing.
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
    add(name, [environment = tree_.environment(), program, before, arguments] {
      if (!program || !before) {
        return skipped(program ? "run-with-fake-gpus is not here" : "gpushm is not here");
      }
      return run_demo(*before, *program, arguments, environment);
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
        add(name, [reason] { return skipped(reason); });
      }
    }
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const std::string ordinal = std::to_string(i);
      add_demo("demo.gpu" + ordinal, words{}, {"--device", ordinal});
      add_demo("demo.gpu" + ordinal + ".isolated", words{}, {"--device", ordinal, "--isolated"});
    }
    if (gpus.size() < 2) {
      const std::string reason = "needs two GPUs, " + std::to_string(gpus.size()) + " visible";
      for (const char* name : {"demo.peer", "demo.peer.isolated"}) {
        add(name, [reason] { return skipped(reason); });
      }
      return;
    }
    const words peers{"--device", "0", "--consumer-device", "1"};
    add_demo("demo.peer", words{}, peers);
    add_demo("demo.peer.isolated", words{}, {peers[0], peers[1], peers[2], peers[3], "--isolated"});
  }

  void add_conformance() {
    const auto program = tree_.find("gpushm_conformance");
    const auto add_one = [&](const std::string& name, const std::optional<words>& before) {
      add(name, [environment = tree_.environment(), program, before] {
        if (!program || !before) {
          return skipped(program ? "run-with-fake-gpus is not here"
                                 : "gpushm_conformance is not here");
        }
        return run_gtest(*before, *program, environment, conformance_timeout);
      });
    };
    // Without a driver only its tests of host memory run: they count as such, and not as the
    // driver's.
    const bool real = !facts_.at("cuda").at("gpus").empty();
    add_one(real ? "conformance.real" : "conformance.host", words{});
    if (!real) {
      add("conformance.real", [] { return skipped("no GPU is visible to this process"); });
    }
    add_one("conformance.fake", on_fakes({"--gpus", "2", "--size", "4GiB"}));
    add_one("conformance.fake-mig", on_fakes({"--mig", "2", "--size", "4GiB"}));
  }

  void add_tests() {
    for (const std::string& name : tree_.with_suffix("_test")) {
      const bool containers = name.find("container") != std::string::npos;
      add("test." + name,
          [environment = tree_.environment(), program = *tree_.find(name), containers] {
            if (containers && ::geteuid() != 0) {
              return skipped("containers are made by root only");
            }
            if (containers && !find_in_path("runc")) {
              return skipped("runc is not installed");
            }
            return run_gtest({}, program, environment, test_timeout);
          });
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
