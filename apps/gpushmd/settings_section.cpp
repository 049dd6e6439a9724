// SPDX-License-Identifier: Apache-2.0
// The `agent:` section of the settings file.
#include <fmt/core.h>

#include <algorithm>

#include "apps/gpushmd/settings.hpp"
#include "containers/yaml/reader.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

class section_reader {
 public:
  section_reader(std::string_view text,
                 const std::string& file,
                 settings& out,
                 std::vector<settings_problem>& problems)
      : file_(file), reader_(file, found_), out_(out), problems_(problems) {
    yaml::read_yaml(text, tree_);
  }

  void read() {
    if (tree_.failure) {
      report(tree_.failure->line, tree_.failure->column, tree_.failure->text);
      return;
    }
    if (tree_.root == nullptr) {
      return;
    }
    for (const yaml::entry& each : reader_.entries(*tree_.root, "the settings")) {
      if (each.key == "agent") {
        read_mapping(*each.value, {});
      }
    }
    for (const yaml::problem& each : found_) {
      report(each.line, each.column, each.text);
    }
  }

 private:
  void report(int line, int column, std::string text, std::string next_step = {}) {
    problems_.push_back(
        {fmt::format("{}:{}:{}", file_, line, column), std::move(text), std::move(next_step)});
  }

  void read_mapping(const yaml::node& node, const std::string& path) {
    for (const yaml::entry& each :
         reader_.entries(node, path.empty() ? "agent" : "agent." + path)) {
      read_entry(each, path.empty() ? each.key : fmt::format("{}.{}", path, each.key));
    }
  }

  void read_entry(const yaml::entry& entry, const std::string& path) {
    const auto settings = all_settings();
    const auto exact = std::find_if(
        settings.begin(), settings.end(), [&](const setting& s) { return s.key == path; });
    if (exact != settings.end()) {
      take(*exact, *entry.value);
      return;
    }
    const std::string inside = path + ".";
    if (std::any_of(settings.begin(), settings.end(), [&](const setting& s) {
          return s.key.starts_with(inside);
        })) {
      read_mapping(*entry.value, path);
      return;
    }
    report(entry.key_node->line,
           entry.key_node->column,
           "unknown setting agent." + path,
           next_step_for(entry.key));
  }

  /// Where a setting with this name belongs, if one exists.
  static std::string next_step_for(const std::string& key) {
    for (const setting& each : all_settings()) {
      if (each.key == key || each.key.ends_with("." + key)) {
        return fmt::format("write it as agent.{}", each.key);
      }
    }
    const std::string place = gpushm::device_plugin::place_of_setting(key);
    return place.empty() ? "see: gpushmd --help"
                         : fmt::format("{} belongs in {}, outside agent", key, place);
  }

  void take(const setting& setting, const yaml::node& node) {
    if (reader_.is_null(node)) {
      return;
    }
    std::string text;
    if (yaml::followed(node).is == yaml::node::shape::sequence) {
      std::vector<std::string> parts;
      reader_.read(node, setting.key, parts);
      for (const std::string& part : parts) {
        text.append(text.empty() ? "" : ",").append(part);
      }
    } else if (yaml::followed(node).is == yaml::node::shape::scalar) {
      text = yaml::followed(node).value;
    }
    try {
      setting.take(out_, text);
    } catch (const error& why) {
      report(node.line,
             node.column,
             fmt::format("agent.{}: {}", setting.key, why.cause()),
             why.next_step());
    }
  }

  std::string file_;
  std::vector<yaml::problem> found_;
  yaml::tree tree_;
  yaml::reader reader_;
  settings& out_;
  std::vector<settings_problem>& problems_;
};

}  // namespace

void read_agent_section(std::string_view text,
                        const std::string& file,
                        settings& out,
                        std::vector<settings_problem>& problems) {
  section_reader(text, file, out, problems).read();
}

}  // namespace gpushm::agent
