// SPDX-License-Identifier: Apache-2.0
// The agent's settings: defaults, file, environment, flags, and what each says of a mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "gpushm/error.hpp"
#include "process/temp_dir.hpp"
#include "settings.hpp"

namespace gpushm::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  static spoken_settings say(const std::map<std::string, std::string>& flags) {
    const auto all = all_settings();
    spoken_settings spoken(all.size());
    std::size_t found = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (const auto at = flags.find(std::string(all[i].flag)); at != flags.end()) {
        spoken[i] = at->second;
        ++found;
      }
    }
    EXPECT_EQ(found, flags.size());
    return spoken;
  }
  // Each problem as one line, the folder left out.
  std::vector<std::string> problems(const spoken_settings& spoken) {
    std::vector<std::string> lines;
    for (const settings_problem& each : gather_settings(spoken, variable).problems) {
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
    return problems(say({{"--config", file(text)}}));
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
  EXPECT_EQ(result.content.listen, "0.0.0.0:9410");
  EXPECT_EQ(result.content.share_replicas, 64U);
  EXPECT_EQ(result.content.share_devices, 64U);
  EXPECT_EQ(result.content.state_directory(), "/var/lib/kubelet/plugins/gpushm.dev");
}

TEST_F(agent_settings, a_flag_counts_more_than_a_variable_and_that_more_than_the_file) {
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
                 {"GPUSHMD_GPU_RESOURCE_NAME", "example.com/board"},
                 {"MIG_STRATEGY", "mixed"},
                 {"GPUSHMD_CONFIG", path}};
  const settings chosen =
      gather_usable_settings(say({{"--gpu-resource-name", "example.com/flag"}}), variable);
  EXPECT_EQ(chosen.share_devices, 10U);
  EXPECT_EQ(chosen.share_replicas, 21U);
  EXPECT_EQ(chosen.gpu_resource_name, "example.com/flag");
  EXPECT_EQ(chosen.plugin.flags.mig, plugin::mig_strategy::mixed);
  EXPECT_THAT(chosen.domains, ElementsAre("one", "two"));
  EXPECT_EQ(chosen.log_as, log_format::json);
  EXPECT_EQ(chosen.config_file, path);
}

TEST_F(agent_settings, an_empty_variable_says_nothing) {
  variables() = {{"GPUSHMD_SHARE_REPLICAS", ""}};
  EXPECT_EQ(gather_usable_settings({}, variable).share_replicas, 64U);
}

TEST_F(agent_settings, mistakes_are_told_with_their_places) {
  EXPECT_THAT(problems_of_file(R"(version: v1
agent:
  dra:
    shareDevices: 129
    shareDevice: 3
  broker: {domains: [a, claim-1]}
  gpus: on
)"),
              ElementsAre("agent.yaml:4:19: agent.dra.shareDevices: \"129\" is no number from 1 to "
                          "128",
                          "agent.yaml:5:5: there is no setting agent.dra.shareDevice (see: gpushmd "
                          "--help)",
                          "agent.yaml:6:21: agent.broker.domains: \"claim-1\" is a name of the "
                          "domains of claims (use another name)",
                          "agent.yaml:7:3: there is no setting agent.gpus (see: gpushmd --help)"));
}

TEST_F(agent_settings, a_section_that_is_no_mapping_is_a_mistake) {
  const auto told = problems_of_file("version: v1\nagent: 3\n");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], ::testing::StartsWith("agent.yaml:2:8: "));
  EXPECT_THAT(problems_of_file("version: v1\nagent:\n"), IsEmpty());
  EXPECT_EQ(problems_of_file("version: v1\nagent: {broker: [}\n").size(), 1U);
}

TEST_F(agent_settings, the_usual_plugins_part_has_places_too) {
  const auto told = problems_of_file("version: v1\nflags: {migStrategy: some}\n");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], ::testing::StartsWith("agent.yaml:2:22: "));
}

TEST_F(agent_settings, a_file_that_is_not_there_is_a_mistake) {
  EXPECT_THAT(
      problems(say({{"--config", folder_ / "none.yaml"}})),
      ElementsAre("none.yaml: No such file or directory (ENOENT) (check the path that --config or "
                  "$GPUSHMD_CONFIG names)"));
}

TEST_F(agent_settings, words_and_numbers_are_checked) {
  const std::vector<std::pair<std::map<std::string, std::string>, std::string>> cases{
      {{{"--listen", "9410"}},
       "--listen: \"9410\" is no IP address with a port (say it as 0.0.0.0:9410 or [::]:9410, or "
       "off)"},
      {{{"--listen", "127.0.0.1:99999"}},
       "--listen: \"127.0.0.1:99999\" is no IP address with a port (say it as 0.0.0.0:9410 or "
       "[::]:9410, or off)"},
      {{{"--broker", "maybe"}}, "--broker: \"maybe\" is neither on nor off (say on or off)"},
      {{{"--share-devices", "0"}}, "--share-devices: \"0\" is no number from 1 to 128"},
      {{{"--share-devices", "5x"}}, "--share-devices: \"5x\" is no number from 1 to 128"},
      {{{"--run-dir", "run"}}, "--run-dir: \"run\" is no absolute path (say it from / on)"},
      {{{"--domain", "a,a"}}, "--domain: \"a\" is named twice (name each domain once)"},
      {{{"--domain", "../x"}},
       "--domain: \"../x\" is no name for a domain (use up to 40 letters, digits, '-' and '_', "
       "beginning and ending with a letter or digit)"},
      {{{"--log-level", "loud"}},
       "--log-level: \"loud\" is no level (say debug, info, warning or error)"},
      {{{"--log-format", "xml"}},
       "--log-format: \"xml\" is neither text nor json (say text or json)"},
  };
  for (const auto& [flags, text] : cases) {
    EXPECT_THAT(problems(say(flags)), ElementsAre(text));
  }
}

TEST_F(agent_settings, the_first_mistake_is_thrown_with_the_number_of_the_others) {
  variables() = {{"GPUSHMD_BROKER", "x"}, {"GPUSHMD_GPUS", "y"}};
  try {
    static_cast<void>(gather_usable_settings({}, variable));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "read settings \"$GPUSHMD_BROKER\": \"x\" is neither on nor off; and 1 more: "
                 "gpushmd check-config lists them (say on or off)");
  }
}

TEST(agent_settings_table, has_no_name_twice) {
  std::set<std::string_view> flags;
  std::set<std::string_view> names;
  std::set<std::string_view> keys;
  for (const setting& each : all_settings()) {
    EXPECT_TRUE(flags.insert(each.flag).second) << each.flag;
    EXPECT_TRUE(each.flag.starts_with("--")) << each.flag;
    EXPECT_FALSE(each.help.empty()) << each.flag;
    EXPECT_FALSE(each.variable.empty()) << each.flag << ": each flag is a variable too";
    EXPECT_TRUE(names.insert(each.variable).second) << each.variable;
    EXPECT_TRUE(each.key.empty() || keys.insert(each.key).second) << each.key;
  }
}

}  // namespace
}  // namespace gpushm::agent
