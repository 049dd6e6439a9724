// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <cerrno>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr std::size_t most_file_bytes = std::size_t{1} << 20U;

std::string_view value_of(const setting& what,
                          std::size_t index,
                          const spoken_settings& spoken,
                          const char* (*variable)(const char*),
                          std::string& place) {
  if (index < spoken.size() && spoken[index]) {
    place = what.flag;
    return *spoken[index];
  }
  const char* const found =
      what.variable.empty() ? nullptr : variable(std::string(what.variable).c_str());
  if (found == nullptr || *found == '\0') {
    return {};
  }
  place = "$";
  place += what.variable;
  return found;
}

void read_file(const std::string& file, settings& out, std::vector<settings_problem>& problems) {
  const auto text = base::read_small_file(file, most_file_bytes);
  if (!text || text->size() == most_file_bytes) {
    problems.push_back({file,
                        text ? "it has more than 1 MiB" : base::errno_text(errno),
                        "check the path that --config or $GPUSHMD_CONFIG names"});
    return;
  }
  plugin::checked_configuration usual = plugin::check_configuration(*text, file);
  for (plugin::configuration_problem& each : usual.problems) {
    std::string place = file;
    if (each.line > 0) {
      place.append(":")
          .append(std::to_string(each.line))
          .append(":")
          .append(std::to_string(each.column));
    }
    problems.push_back({std::move(place), std::move(each.text), std::move(each.next_step)});
  }
  out.plugin = std::move(usual.content);
  if (out.plugin.flags.driver_root) {
    out.driver_root = *out.plugin.flags.driver_root;
  }
  if (out.plugin.flags.dev_root) {
    out.dev_root = *out.plugin.flags.dev_root;
  }
  if (problems.empty()) {  // what is no YAML would be told twice
    read_agent_section(*text, file, out, problems);
  }
}

}  // namespace

std::string settings::state_directory() const {
  return state_dir.empty() ? kubelet_root + "/plugins/gpushm.dev" : state_dir;
}

settings_result gather_settings(const spoken_settings& spoken,
                                const char* (*variable)(const char* name)) {
  settings_result result;
  std::string place;
  const auto all = all_settings();
  // The first is the file, which the others are laid over.
  if (const std::string_view file = value_of(all.front(), 0, spoken, variable, place);
      !file.empty()) {
    result.content.config_file = file;
    read_file(result.content.config_file, result.content, result.problems);
  }
  for (std::size_t i = 1; i < all.size(); ++i) {
    place.clear();
    const std::string_view text = value_of(all[i], i, spoken, variable, place);
    if (place.empty()) {
      continue;
    }
    try {
      all[i].take(result.content, text);
    } catch (const error& why) {
      result.problems.push_back({place, why.cause(), why.next_step()});
    }
  }
  return result;
}

settings gather_usable_settings(const spoken_settings& spoken,
                                const char* (*variable)(const char* name)) {
  settings_result result = gather_settings(spoken, variable);
  if (!result.problems.empty()) {
    const settings_problem& first = result.problems.front();
    std::string cause = first.text;
    if (result.problems.size() > 1) {
      cause.append("; and ")
          .append(std::to_string(result.problems.size() - 1))
          .append(" more: gpushmd check-config lists them");
    }
    throw error(errc::invalid_argument, "read settings", first.place, cause, first.next_step);
  }
  return std::move(result.content);
}

}  // namespace gpushm::agent
