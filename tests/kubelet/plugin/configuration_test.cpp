// SPDX-License-Identifier: Apache-2.0
// The NVIDIA device plugin's file: reading plugin_configurations/NAME.yaml gives exactly the text
// of NAME.expected.
#include "kubernetes/device_plugin/configuration/configuration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::device_plugin {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

template <typename Value>
void put(std::ostream& out, const char* name, const std::optional<Value>& value) {
  if (value) {
    out << name << " = " << *value << "\n";
  }
}

void put_names(std::ostream& out, const char* kind, const std::vector<naming>& names) {
  for (const naming& each : names) {
    out << kind << " " << each.pattern << " = " << each.name << "\n";
  }
}

void put_sharing(std::ostream& out, const time_slicing& slicing) {
  out << (slicing.rename_by_default ? "rename by default\n" : "")
      << (slicing.fail_requests_greater_than_one ? "one replica per request\n" : "");
  for (const replicated_resource& each : slicing.resources) {
    out << each.name << " x " << each.replicas;
    if (!each.rename.empty()) {
      out << " as " << each.rename;
    }
    if (each.devices.count > 0) {
      out << ", the first " << each.devices.count;
    }
    for (const std::string& name : each.devices.names) {
      out << ", " << name;
    }
    out << "\n";
  }
}

std::string dump(const checked_configuration& checked) {
  std::ostringstream out;
  for (const configuration_problem& each : checked.problems) {
    out << each.line << ":" << each.column << ": " << each.text << " (" << each.next_step << ")\n";
  }
  const plugin_flags& flags = checked.content.flags;
  if (checked.problems.empty()) {
    if (flags.mig) {
      out << "mig = " << to_string(*flags.mig) << "\n";
    }
    put(out, "fail on init error", flags.fail_on_init_error);
    put(out, "driver root", flags.driver_root);
    put(out, "dev root", flags.dev_root);
    put(out, "gds", flags.gds);
    put(out, "mofed", flags.mofed);
    put(out, "gdrcopy", flags.gdrcopy);
    put(out, "pass device specs", flags.pass_device_specs);
    for (const auto each : flags.device_list.value_or(std::set<device_list_strategy>{})) {
      out << "device list = " << to_string(each) << "\n";
    }
    if (flags.device_id) {
      out << "device id = " << to_string(*flags.device_id) << "\n";
    }
    put(out, "annotation prefix", flags.cdi_annotation_prefix);
    put_names(out, "gpu", checked.content.gpu_names);
    put_names(out, "mig", checked.content.mig_names);
    put_sharing(out, checked.content.slicing);
    if (checked.content.imex.channel_zero) {
      out << "imex channel 0" << (checked.content.imex.required ? ", required" : "") << "\n";
    }
  }
  for (const std::string& each : checked.content.warnings) {
    out << "warning: " << each << "\n";
  }
  return out.str();
}

const fs::path directory = GPUSHM_PLUGIN_CONFIGURATIONS;

TEST(plugin_configuration, files_match_expected_results) {
  if (!fs::is_directory(directory)) {
    GTEST_SKIP() << "the source tree does not exist: " << directory;
  }
  std::size_t count = 0;
  for (const auto& each : fs::directory_iterator(directory)) {
    if (each.path().extension() != ".yaml") {
      continue;
    }
    ++count;
    const std::string name = each.path().filename().string();
    const std::string actual = dump(check_configuration(read(each.path()), name));
    fs::path expected = each.path();
    expected.replace_extension(".expected");
    if (std::getenv("GPUSHM_WRITE_EXPECTED") != nullptr) {
      std::ofstream(expected) << actual;
    }
    EXPECT_EQ(actual, read(expected)) << name;
    EXPECT_EQ(name.starts_with("bad_"),
              actual.find(": ") < actual.find('\n') && !actual.starts_with("warning: ") &&
                  actual.front() >= '0' && actual.front() <= '9')
        << name;
  }
  EXPECT_GE(count, 60U);
}

TEST(plugin_configuration, first_problem_is_thrown_with_position) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      static_cast<void>(parse_configuration(text, "/etc/gpushm/config.yaml"));
    } catch (const error& failure) {
      EXPECT_EQ(failure.code(), errc::invalid_argument);
      return failure.what();
    }
    return "nothing";
  };
  EXPECT_EQ(message("version: v1\n"), "nothing");
  EXPECT_EQ(message("version: v1\nflags:\n  migStrategy: both\n"),
            "read configuration \"/etc/gpushm/config.yaml:3:16\": flags.migStrategy cannot be "
            "\"both\" (write none, single or mixed)");
  EXPECT_EQ(message("version: v2\nflags: 3\nsharing: {mps: {}}\n"),
            "read configuration \"/etc/gpushm/config.yaml:1:10\": version cannot be \"v2\"; and 2 "
            "more problems (write version: v1, the only supported version)");
}

TEST(plugin_configuration, canonical_file_round_trips_without_warning) {
  const std::string article =
      "version: v1\nsharing:\n  timeSlicing:\n    replicas: 4\n    renameByDefault: true\n"
      "    failRequestsGreaterThanOne: true\n    resources:\n    - {name: gpu, devices: [0, "
      "'0:1']}\n"
      "    - {name: mig-1g.5gb, devices: 2, rename: cut, replicas: 3}\n";
  const configuration first = parse_configuration(article, "f");
  ASSERT_EQ(first.warnings.size(), 1U);
  const configuration second = parse_configuration(canonical_time_slicing(first.slicing), "f");
  EXPECT_EQ(second.slicing, first.slicing);
  EXPECT_TRUE(second.warnings.empty());
  EXPECT_THAT(first.warnings[0], ::testing::EndsWith(canonical_time_slicing(first.slicing)));
}

TEST(plugin_configuration, invalid_flag_values_are_rejected_with_choices) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const error& failure) {
      return failure.what();
    }
    return "nothing";
  };
  EXPECT_EQ(parse_mig_strategy("mixed", "--mig-strategy"), mig_strategy::mixed);
  EXPECT_EQ(parse_device_id_strategy("index", "x"), device_id_strategy::index);
  EXPECT_EQ(parse_replica_policy("packed", "x"), replica_policy::packed);
  EXPECT_EQ(parse_device_list_strategies("cdi-cri, envvar", "x"),
            (std::set{device_list_strategy::envvar, device_list_strategy::cdi_cri}));
  EXPECT_EQ(message([] { static_cast<void>(parse_mig_strategy("all", "--mig-strategy")); }),
            "set --mig-strategy \"all\": invalid value (write none, single or mixed)");
  EXPECT_EQ(message([] {
              static_cast<void>(parse_device_list_strategies("envvar,cdi", "DEVICE_LIST_STRATEGY"));
            }),
            "set DEVICE_LIST_STRATEGY \"cdi\": invalid value (write envvar, volume-mounts, "
            "cdi-annotations or cdi-cri)");
  EXPECT_EQ(message([] { static_cast<void>(parse_device_list_strategies("", "X")); }),
            "set X: invalid value (write envvar, volume-mounts, cdi-annotations or cdi-cri)");
  EXPECT_EQ(message([] { static_cast<void>(parse_device_id_strategy("", "X")); }),
            "set X: invalid value (write uuid or index)");
  EXPECT_EQ(message([] { static_cast<void>(parse_replica_policy("tight", "X")); }),
            "set X \"tight\": invalid value (write distributed or packed)");
}

TEST(plugin_configuration, resource_names_follow_kubernetes_rules) {
  EXPECT_EQ(whole_resource_name("gpu"), "nvidia.com/gpu");
  EXPECT_EQ(whole_resource_name("example.com/gpu"), "example.com/gpu");
  for (const char* good : {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb.me", "a/B_c.d-e"}) {
    EXPECT_EQ(resource_name_problem(good), std::nullopt) << good;
  }
  for (const char* bad : {"gpu",
                          "/gpu",
                          "a/",
                          "a/b/c",
                          "a/-b",
                          "a/b-",
                          "a..b/c",
                          "-a/b",
                          "a-/b",
                          "a/b+c",
                          "A/b",
                          "kubernetes.io/gpu"}) {
    EXPECT_NE(resource_name_problem(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace gpushm::device_plugin
