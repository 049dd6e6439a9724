// SPDX-License-Identifier: Apache-2.0
// The agent's settings: defaults, file, environment, flags, and their error messages.
#include "apps/gpushmd/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "apps/gpushmd/dra_presence.hpp"
#include "apps/gpushmd/inventory_child.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/state_table.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

std::map<std::string, std::string, std::less<>>& variables() {
  static std::map<std::string, std::string, std::less<>> all;
  return all;
}
const char* variable(const char* name) {
  const auto found = variables().find(name);
  return found == variables().end() ? nullptr : found->second.c_str();
}

class agent_settings : public ::testing::Test {
 protected:
  agent_settings() { variables().clear(); }

  std::string file(const std::string& text) {
    const std::string path = folder_ / "agent.yaml";
    std::ofstream(path) << text;
    return path;
  }
  static flag_values flags_of(const std::map<std::string, std::string>& flags) {
    const auto settings = all_settings();
    flag_values values(settings.size());
    std::size_t count = 0;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      if (const auto at = flags.find(std::string(settings[i].flag)); at != flags.end()) {
        values[i] = at->second;
        ++count;
      }
    }
    EXPECT_EQ(count, flags.size());
    return values;
  }
  // Each problem as one line, without the folder.
  std::vector<std::string> problems(const flag_values& values) {
    std::vector<std::string> lines;
    for (const settings_problem& each : gather_settings(values, variable).problems) {
      std::string line = each.place + ": " + each.text;
      if (!each.next_step.empty()) {
        line += " (" + each.next_step + ")";
      }
      if (const std::size_t at = line.find(folder_.path()); at != std::string::npos) {
        line.erase(at, folder_.path().size() + 1);
      }
      lines.push_back(line);
    }
    return lines;
  }
  std::vector<std::string> problems_of_file(const std::string& text) {
    return problems(flags_of({{"--config", file(text)}}));
  }

  gpushm_testing::temp_dir folder_;
};

TEST_F(agent_settings, have_defaults) {
  const settings_result result = gather_settings({}, variable);
  EXPECT_THAT(result.problems, IsEmpty());
  EXPECT_TRUE(result.content.broker);
  EXPECT_TRUE(result.content.device_plugin);
  EXPECT_FALSE(result.content.dra.has_value());
  EXPECT_THAT(result.content.domains, ElementsAre("default"));
  EXPECT_EQ(result.content.listen, "[::]:9410");
  EXPECT_EQ(result.content.offer.share_replicas, 64U);
  EXPECT_EQ(result.content.share_devices, 64U);
  EXPECT_EQ(result.content.state_directory(), "/var/lib/kubelet/plugins/gpushm.dev");
}

TEST_F(agent_settings, precedence_is_flag_variable_file) {
  const std::string path = file(R"(
version: v1
flags:
  migStrategy: single
agent:
  dra: {shareDevices: 10}
  devicePlugin: {shareReplicas: 11, resourceName: example.com/gpu}
  broker:
    domains: [one, two]
  log: {format: json}
)");
  variables() = {{"GPUSHMD_SHARE_REPLICAS", "21"},
                 {"GPUSHMD_GPU_RESOURCE_NAME", "example.com/variable"},
                 {"MIG_STRATEGY", "mixed"},
                 {"GPUSHMD_CONFIG", path}};
  const settings chosen =
      gather_usable_settings(flags_of({{"--gpu-resource-name", "example.com/flag"}}), variable);
  EXPECT_EQ(chosen.share_devices, 10U);
  EXPECT_EQ(chosen.offer.share_replicas, 21U);
  EXPECT_EQ(chosen.offer.gpu_resource_name, "example.com/flag");
  EXPECT_EQ(chosen.offer.plugin.flags.mig, gpushm::device_plugin::mig_strategy::mixed);
  EXPECT_THAT(chosen.domains, ElementsAre("one", "two"));
  EXPECT_EQ(chosen.log_as, log_format::json);
  EXPECT_EQ(chosen.config_file, path);
}

TEST_F(agent_settings, empty_variable_is_ignored) {
  variables() = {{"GPUSHMD_SHARE_REPLICAS", ""}};
  EXPECT_EQ(gather_usable_settings({}, variable).offer.share_replicas, 64U);
}

TEST_F(agent_settings, health_variables_of_nvidias_plugin_are_read) {
  const auto health = [](const char* disable, const char* enable) {
    variables() = {{"DP_DISABLE_HEALTHCHECKS", disable}, {"DP_ENABLE_HEALTHCHECKS", enable}};
    return gather_usable_settings({}, variable).health;
  };
  const gpushm::device_plugin::health_options usual;
  EXPECT_EQ(health("", ""), usual);
  EXPECT_FALSE(health("all", "").any_xid);
  EXPECT_FALSE(health("XIDS", "").any_xid);
  EXPECT_EQ(health("48, 79", "").application_xids,
            (std::set<std::uint64_t>{13, 31, 43, 45, 48, 68, 79, 109}));
  EXPECT_EQ(health("48", "13,45").application_xids, (std::set<std::uint64_t>{31, 43, 48, 68, 109}));
  EXPECT_TRUE(health("48", "all").application_xids.empty());
  // The agent's own setting is applied in addition.
  variables()["GPUSHMD_APPLICATION_XIDS"] = "-48,99";
  variables()["DP_DISABLE_HEALTHCHECKS"] = "48";
  variables()["DP_ENABLE_HEALTHCHECKS"] = "";
  EXPECT_EQ(gather_usable_settings({}, variable).health.application_xids,
            (std::set<std::uint64_t>{13, 31, 43, 45, 68, 99, 109}));
}

TEST_F(agent_settings, health_variables_without_effect_are_problems) {
  variables() = {{"DP_DISABLE_HEALTHCHECKS", "all"}, {"DP_ENABLE_HEALTHCHECKS", "79"}};
  EXPECT_THAT(problems({}),
              ElementsAre("$DP_ENABLE_HEALTHCHECKS: it has no effect while every Xid is ignored "
                          "(list the Xids to ignore in DP_DISABLE_HEALTHCHECKS in place of all)"));
  variables() = {{"DP_DISABLE_HEALTHCHECKS", "4x"}, {"DP_ENABLE_HEALTHCHECKS", "-1"}};
  EXPECT_THAT(problems({}),
              ElementsAre("$DP_DISABLE_HEALTHCHECKS: not an Xid (write comma-separated numbers of "
                          "Xids, or all)",
                          "$DP_ENABLE_HEALTHCHECKS: not an Xid (write comma-separated numbers of "
                          "Xids, or all)"));
}

TEST_F(agent_settings, other_variables_of_nvidias_plugin_are_read_or_named) {
  variables() = {{"GDS_ENABLED", "true"},
                 {"MOFED_ENABLED", "false"},
                 {"GDRCOPY_ENABLED", "1"},
                 {"CONFIG_FILE", "/config/config.yaml"},
                 {"NVIDIA_DRIVER_ROOT", ""},
                 {"CONTAINER_DRIVER_ROOT", "/driver-root"}};
  const settings chosen = gather_usable_settings({}, variable);
  EXPECT_EQ(chosen.offer.plugin.flags.gds, true);
  EXPECT_EQ(chosen.offer.plugin.flags.mofed, false);
  EXPECT_EQ(chosen.offer.plugin.flags.gdrcopy, true);
  EXPECT_THAT(chosen.offer.plugin.warnings,
              ElementsAre("$CONFIG_FILE, a variable of NVIDIA's device plugin, is ignored: set "
                          "GPUSHMD_CONFIG",
                          "$CONTAINER_DRIVER_ROOT, a variable of NVIDIA's device plugin, is "
                          "ignored: mount the driver into the pod at the path that it has on the "
                          "host"));
}

TEST_F(agent_settings, problems_have_line_and_column) {
  EXPECT_THAT(
      problems_of_file(R"(version: v1
agent:
  dra:
    shareDevices: 129
    shareDevice: 3
  broker: {domains: [a, claim-1]}
  gpus: on
  devicePlugin: {renameByDefault: true}
  migStrategy: none
)"),
      ElementsAre(
          "agent.yaml:4:19: agent.dra.shareDevices: \"129\" is not a number from 1 to 128",
          "agent.yaml:5:5: unknown setting agent.dra.shareDevice (see: gpushmd --help)",
          "agent.yaml:6:21: agent.broker.domains: \"claim-1\" is invalid: names that begin "
          "with claim- are reserved for the domains of claims (use another name)",
          "agent.yaml:7:3: unknown setting agent.gpus (write it as agent.devicePlugin.gpus)",
          "agent.yaml:8:18: unknown setting agent.devicePlugin.renameByDefault "
          "(renameByDefault belongs in sharing.timeSlicing, outside agent)",
          "agent.yaml:9:3: unknown setting agent.migStrategy (migStrategy belongs in flags, "
          "outside agent)"));
}

TEST_F(agent_settings, section_must_be_a_mapping) {
  const auto found = problems_of_file("version: v1\nagent: 3\n");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], ::testing::StartsWith("agent.yaml:2:8: "));
  EXPECT_THAT(problems_of_file("version: v1\nagent:\n"), IsEmpty());
  EXPECT_EQ(problems_of_file("version: v1\nagent: {broker: [}\n").size(), 1U);
}

TEST_F(agent_settings, nvidia_plugin_problems_have_line_and_column) {
  const auto found = problems_of_file("version: v1\nflags: {migStrategy: some}\n");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], ::testing::StartsWith("agent.yaml:2:22: "));
}

TEST_F(agent_settings, missing_file_is_a_problem) {
  EXPECT_THAT(
      problems(flags_of({{"--config", folder_ / "none.yaml"}})),
      ElementsAre("none.yaml: No such file or directory (ENOENT) (check the path that --config or "
                  "$GPUSHMD_CONFIG names)"));
}

TEST_F(agent_settings, values_are_checked) {
  const std::vector<std::pair<std::map<std::string, std::string>, std::string>> cases{
      {{{"--listen", "9410"}},
       "--listen: \"9410\" is not an IP address with a port (use 0.0.0.0:9410, [::]:9410 or off)"},
      {{{"--listen", "127.0.0.1:99999"}},
       "--listen: \"127.0.0.1:99999\" is not an IP address with a port (use 0.0.0.0:9410, "
       "[::]:9410 or off)"},
      {{{"--broker", "maybe"}}, "--broker: \"maybe\" is neither on nor off (use on or off)"},
      {{{"--share-devices", "0"}}, "--share-devices: \"0\" is not a number from 1 to 128"},
      {{{"--share-devices", "5x"}}, "--share-devices: \"5x\" is not a number from 1 to 128"},
      {{{"--run-dir", "run"}},
       "--run-dir: \"run\" is not an absolute path (use a path that begins with /)"},
      {{{"--domain", "a,a"}}, "--domain: \"a\" is listed twice (list each domain once)"},
      {{{"--domain", "../x"}},
       "--domain: \"../x\" is not a valid domain name (use up to 40 letters, digits, '-' and '_', "
       "beginning and ending with a letter or digit)"},
      {{{"--log-level", "loud"}},
       "--log-level: \"loud\" is not a log level (use debug, info, warning or error)"},
      {{{"--log-format", "xml"}},
       "--log-format: \"xml\" is neither text nor json (use text or json)"},
  };
  for (const auto& [flags, text] : cases) {
    EXPECT_THAT(problems(flags_of(flags)), ElementsAre(text));
  }
}

TEST_F(agent_settings, first_problem_is_thrown_with_count_of_others) {
  variables() = {{"GPUSHMD_BROKER", "x"}, {"GPUSHMD_GPUS", "y"}};
  try {
    static_cast<void>(gather_usable_settings({}, variable));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "read settings \"$GPUSHMD_BROKER\": \"x\" is neither on nor off; and 1 more: "
                 "gpushmd check-config lists them (use on or off)");
  }
}

TEST_F(agent_settings, fifo_is_rejected_without_blocking) {
  const std::string path = folder_ / "fifo.yaml";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(problems(flags_of({{"--config", path}})),
              ElementsAre("fifo.yaml: it is not a regular file (check the path that --config or "
                          "$GPUSHMD_CONFIG names)"));
}

TEST_F(agent_settings, restart_only_changes_are_listed) {
  const settings running = gather_usable_settings({}, variable);
  EXPECT_THAT(changed_until_restart(running, running), IsEmpty());
  const settings fresh = gather_usable_settings(flags_of({{"--config", file(R"(
version: v1
flags: {nvidiaDriverRoot: /run/nvidia/driver}
agent:
  broker: {domains: [default, team-a]}
  devicePlugin: {gpus: off, shareReplicas: 3, applicationXids: "74"}
)")}}),
                                                variable);
  EXPECT_THAT(changed_until_restart(running, fresh),
              ElementsAre("--config",
                          "agent.broker.domains",
                          "agent.devicePlugin.gpus",
                          "agent.devicePlugin.applicationXids",
                          "agent.driverRoot"));
}

// A running agent applies only `offer`, so changes of a setting that is neither part of it nor
// listed would be silently ignored.
TEST_F(agent_settings, each_setting_is_applied_or_needs_restart) {
  const std::map<std::string_view, std::string> others{{"--config", ""},
                                                       {"--mig-strategy", "mixed"},
                                                       {"--device-list-strategy", "envvar"},
                                                       {"--device-id-strategy", "index"},
                                                       {"--cdi-annotation-prefix", "example.com/"},
                                                       {"--replica-policy", "packed"},
                                                       {"--share-grace", "7"},
                                                       {"--gpu-resource-name", "example.com/gpu"},
                                                       {"--domain", "other"},
                                                       {"--listen", "127.0.0.1:1"},
                                                       {"--log-level", "debug"},
                                                       {"--log-format", "json"},
                                                       {"--application-xids", "74"},
                                                       {"--node-name", "other"},
                                                       {"--kubeconfig", "other"}};
  const settings before;
  for (const setting& each : all_settings()) {
    settings after;
    const auto other = others.find(each.flag);
    const std::string_view kind = each.value_name;
    for (const std::string& value : other != others.end() ? std::vector{other->second}
                                    : kind == "on|off"    ? std::vector<std::string>{"on", "off"}
                                    : kind == "N"         ? std::vector<std::string>{"1", "2"}
                                                          : std::vector<std::string>{"/other"}) {
      each.take(after, value);
      const bool named = each.differs != nullptr && each.differs(before, after);
      const bool immediate = !(before.offer == after.offer);
      EXPECT_FALSE(named && immediate) << each.flag;
      EXPECT_EQ(immediate && each.differs != nullptr, false) << each.flag;
      if (value != "on" && value != "off" && each.flag != "--config") {
        EXPECT_TRUE(named || immediate) << each.flag << " " << value;
      }
    }
  }
}

TEST(agent_dra_presence, missing_if_no_driver_registers_after_resources) {
  const dra_presence::time_point start{};
  dra_presence one;
  EXPECT_FALSE(one.is_missing(false, false, start));
  EXPECT_FALSE(one.is_missing(false, false, start + 100s));  // no kubelet is running
  EXPECT_FALSE(one.is_missing(true, false, start + 200s));
  EXPECT_FALSE(one.is_missing(true, false, start + 229s));
  EXPECT_TRUE(one.is_missing(true, false, start + 230s));
  EXPECT_FALSE(one.is_missing(true, true, start + 231s));  // its feature gate was enabled
  // A kubelet that registered the driver once has DRA.
  EXPECT_FALSE(one.is_missing(true, false, start + 300s));
  EXPECT_FALSE(one.is_missing(true, false, start + 400s));
  dra_presence two;
  EXPECT_FALSE(two.is_missing(true, false, start));
  EXPECT_FALSE(two.is_missing(false, false, start + 29s));  // the kubelet restarts
  EXPECT_FALSE(two.is_missing(true, false, start + 30s));
  EXPECT_FALSE(two.is_missing(true, false, start + 59s));
}

std::uint64_t memory_limit_in(const std::string& file) {
  std::ifstream stream(std::string(GPUSHM_SOURCE_DIR) + "/deploy/kustomize/base/" + file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  // Of the last container; init containers come first.
  std::uint64_t mebibytes = 0;
  const std::regex limit(R"(limits:\s+memory: (\d+)Mi)");
  for (std::sregex_iterator at(text.begin(), text.end(), limit); at != std::sregex_iterator();
       ++at) {
    mebibytes = std::stoull((*at)[1]);
  }
  return mebibytes << 20U;
}

constexpr std::uint64_t mib = 1U << 20U;

TEST(agent_memory, fits_container_limit) {
  const std::uint64_t limit = memory_limit_in("agent.yaml");
  if (limit == 0) {
    GTEST_SKIP() << "the source tree is not on this machine";
  }
  // Measured: 29 MiB at rest and 89 MiB while it plans (real kubelet and API server), 47 MiB with
  // NVML on an H200, and the same in the process that takes the inventory.
  EXPECT_LE(89 * mib + 2 * 47 * mib, limit);
}

// By default, half of the limit is for what clients occupy.
TEST(broker_memory, fits_container_limit_with_full_domains) {
  const std::uint64_t limit = memory_limit_in("brokerd.yaml");
  if (limit == 0) {
    GTEST_SKIP() << "the source tree is not on this machine";
  }
  const settings defaults;
  const std::uint64_t domains = defaults.share_devices + defaults.domains.size();
  constexpr std::uint64_t own = 16 * mib;
  // A domain at rest, including its thread's stack and heap: 300 domains were 47 MiB.
  const std::uint64_t at_rest = domains * (160U << 10U);
  constexpr std::uint32_t default_max_segments = 4'096;
  const std::uint64_t tables = domains * wire::state_table_bytes(default_max_segments);
  EXPECT_LE(limit / 2 + own + at_rest + tables, limit);
}

TEST(agent_inventory_text, round_trips) {
  gpushm::device_plugin::inventory whole;
  whole.gpus.resize(2);
  whole.gpus[0].entry = {1, "GPU-a", "0000:18:00.0", 3, true, {{4, "MIG-b", 5, 6}}};
  whole.gpus[0].name = "NVIDIA H100";
  whole.gpus[0].total_bytes = 1ULL << 40U;
  whole.gpus[0].numa_node = 1;
  whole.gpus[0].instances.push_back({whole.gpus[0].entry.instances[0], "3g.20gb", 20});
  whole.gpus[1].entry.uuid = "GPU-c";
  whole.closeness = {{0, 100}, {100, 0}};
  whole.driver_version = "580";
  whole.left_out = {"GPU 3 does not respond"};
  EXPECT_EQ(inventory_of_text(inventory_text(whole)), whole);
  gpushm::device_plugin::inventory none;
  none.problem = "no \xff driver";  // invalid UTF-8 does not invalidate the rest
  EXPECT_THAT(inventory_of_text(inventory_text(none))->problem, ::testing::StartsWith("no "));
  EXPECT_EQ(inventory_of_text(""), std::nullopt);
  EXPECT_EQ(inventory_of_text("{\"gpus\": [3]}"), std::nullopt);
}

TEST(agent_settings_table, has_unique_names) {
  std::set<std::string_view> flags;
  std::set<std::string_view> names;
  std::set<std::string_view> keys;
  for (const setting& each : all_settings()) {
    EXPECT_TRUE(flags.insert(each.flag).second) << each.flag;
    EXPECT_TRUE(each.flag.starts_with("--")) << each.flag;
    EXPECT_FALSE(each.help.empty()) << each.flag;
    EXPECT_FALSE(each.variable.empty()) << each.flag << ": each flag must also have a variable";
    EXPECT_TRUE(names.insert(each.variable).second) << each.variable;
    EXPECT_TRUE(each.key.empty() || keys.insert(each.key).second) << each.key;
  }
}

}  // namespace
}  // namespace gpushm::agent
