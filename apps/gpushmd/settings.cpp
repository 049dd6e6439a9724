// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/settings.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20U;

std::string_view value_of(const setting& setting,
                          std::size_t index,
                          const flag_values& flags,
                          const char* (*variable)(const char*),
                          std::string& place) {
  if (index < flags.size() && flags[index]) {
    place = setting.flag;
    return *flags[index];
  }
  const char* const text =
      setting.variable.empty() ? nullptr : variable(std::string(setting.variable).c_str());
  if (text == nullptr || *text == '\0') {
    return {};
  }
  place = fmt::format("${}", setting.variable);
  return text;
}

void read_file(const std::string& file, settings& out, std::vector<settings_problem>& problems) {
  std::string why;
  out.settings_text = read_settings_text(file, why);
  if (!why.empty()) {
    problems.push_back({file, why, "check the path that --config or $GPUSHMD_CONFIG names"});
    return;
  }
  const std::string& text = out.settings_text;
  gpushm::device_plugin::checked_configuration checked =
      gpushm::device_plugin::check_configuration(text, file);
  for (gpushm::device_plugin::configuration_problem& each : checked.problems) {
    std::string place =
        each.line > 0 ? fmt::format("{}:{}:{}", file, each.line, each.column) : file;
    problems.push_back({std::move(place), std::move(each.text), std::move(each.next_step)});
  }
  out.offer.plugin = std::move(checked.content);
  if (out.offer.plugin.flags.driver_root) {
    out.driver_root = *out.offer.plugin.flags.driver_root;
  }
  if (out.offer.plugin.flags.dev_root) {
    out.dev_root = *out.offer.plugin.flags.dev_root;
  }
  if (problems.empty()) {  // invalid YAML would be reported twice
    read_agent_section(text, file, out, problems);
  }
}

/// A variable of NVIDIA's device plugin that this agent does not read, and its substitute.
struct foreign_variable {
  const char* name;
  std::string_view instead;
};

constexpr auto foreign_variables = std::to_array<foreign_variable>(
    {{"CONFIG_FILE", "set GPUSHMD_CONFIG"},
     {"NVIDIA_DRIVER_ROOT", "set GPUSHMD_DRIVER_ROOT"},
     {"NVIDIA_DEV_ROOT", "set GPUSHMD_DEV_ROOT"},
     {"CONTAINER_DRIVER_ROOT", "mount the driver into the pod at the path that it has on the host"},
     {"MPS_ROOT", "MPS is not supported"}});

void warn_of_foreign_variables(const char* (*variable)(const char*), settings& out) {
  for (const foreign_variable& each : foreign_variables) {
    const char* const value = variable(each.name);
    if (value != nullptr && *value != '\0') {
      out.offer.plugin.warnings.push_back(fmt::format(
          "${}, a variable of NVIDIA's device plugin, is ignored: {}", each.name, each.instead));
    }
  }
}

/// Xids by the variables of NVIDIA's device plugin, which change the same setting as
/// --application-xids.
void take_health_variables(const char* (*variable)(const char*),
                           settings& out,
                           std::vector<settings_problem>& problems) {
  const auto value_of_variable = [variable](const char* name) {
    const char* const found = variable(name);
    return base::lower_case(found == nullptr ? "" : found);
  };
  constexpr const char* disable = "DP_DISABLE_HEALTHCHECKS";
  constexpr const char* enable = "DP_ENABLE_HEALTHCHECKS";
  const std::string ignored = value_of_variable(disable);
  const std::string critical = value_of_variable(enable);
  const auto change = [&](const char* name, const std::string& xids) {
    try {
      gpushm::device_plugin::change_application_xids(out.health, xids, {});
    } catch (const error& why) {
      problems.push_back(
          {fmt::format("${}", name), why.cause(), "write comma-separated numbers of Xids, or all"});
    }
  };
  if (!ignored.empty()) {
    change(disable, ignored);
  }
  if (critical.empty()) {
    return;
  }
  if (!out.health.any_xid) {
    problems.push_back({fmt::format("${}", enable),
                        "it has no effect while every Xid is ignored",
                        fmt::format("list the Xids to ignore in {} in place of all", disable)});
    return;
  }
  std::string removed;
  for (const std::string_view each : base::split(critical, ",")) {
    const std::string_view number = base::trim(each);
    if (number == "all" || number == "xids") {
      out.health.application_xids.clear();
      return;
    }
    removed.append(removed.empty() ? "-" : ",-").append(number);
  }
  change(enable, removed);
}

}  // namespace

std::string read_settings_text(const std::string& file, std::string& why) {
  const base::unique_fd fd(
      base::retry([&] { return ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  struct stat about {};
  if (!fd || ::fstat(fd.get(), &about) != 0) {
    why = base::errno_text(errno);
    return {};
  }
  if (!S_ISREG(about.st_mode)) {
    why = "it is not a regular file";
    return {};
  }
  std::string text;
  std::array<char, 65'536> part{};
  for (;;) {
    const auto got = base::retry([&] { return ::read(fd.get(), part.data(), part.size()); });
    if (got < 0) {
      why = base::errno_text(errno);
      return {};
    }
    if (got == 0) {
      return text;
    }
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > max_file_bytes) {
      why = "the file is larger than 1 MiB";
      return {};
    }
  }
}

std::string settings::state_directory() const {
  return state_dir.empty() ? kubelet_root + "/plugins/gpushm.dev" : state_dir;
}

settings_result gather_settings(const flag_values& flags,
                                const char* (*variable)(const char* name)) {
  settings_result result;
  std::string place;
  const auto settings = all_settings();
  // The first setting is the file; the others override it.
  if (const std::string_view file = value_of(settings.front(), 0, flags, variable, place);
      !file.empty()) {
    result.content.config_file = file;
    read_file(result.content.config_file, result.content, result.problems);
  }
  take_health_variables(variable, result.content, result.problems);
  warn_of_foreign_variables(variable, result.content);
  for (std::size_t i = 1; i < settings.size(); ++i) {
    place.clear();
    const std::string_view text = value_of(settings[i], i, flags, variable, place);
    if (place.empty()) {
      continue;
    }
    try {
      settings[i].take(result.content, text);
    } catch (const error& why) {
      result.problems.push_back({place, why.cause(), why.next_step()});
    }
  }
  return result;
}

settings gather_usable_settings(const flag_values& flags,
                                const char* (*variable)(const char* name)) {
  settings_result result = gather_settings(flags, variable);
  if (!result.problems.empty()) {
    const settings_problem& first = result.problems.front();
    std::string cause = first.text;
    if (result.problems.size() > 1) {
      cause +=
          fmt::format("; and {} more: gpushmd check-config lists them", result.problems.size() - 1);
    }
    throw error(errc::invalid_argument, "read settings", first.place, cause, first.next_step);
  }
  return std::move(result.content);
}

}  // namespace gpushm::agent
