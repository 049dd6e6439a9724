// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/refresh_reason.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/text/text.hpp"
#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/driver_files/root_view.hpp"

namespace gpushm::cli {

namespace {

// From the file name of libcuda, which each document mounts, or of NVML.
std::string driver_version(const cdi::document& content) {
  for (const std::string_view stem : {"libcuda.so.", "libnvidia-ml.so."}) {
    for (const cdi::mount& mount : content.changes.mounts) {
      const std::string_view name = base::name_of(mount.container_path);
      if (name.starts_with(stem)) {
        return std::string(name.substr(stem.size()));
      }
    }
  }
  return "none";
}

bool has_device(const cdi::document& content, const std::string& name) {
  return std::any_of(content.devices.begin(), content.devices.end(), [&](const cdi::device& each) {
    return each.name == name;
  });
}

std::vector<std::string> only_in(const cdi::document& left, const cdi::document& right) {
  std::vector<std::string> names;
  for (const cdi::device& each : left.devices) {
    if (!has_device(right, each.name)) {
      names.push_back(each.name);
    }
  }
  return names;
}

}  // namespace

std::string why_different(const cdi::document& before, const cdi::document& now) {
  std::vector<std::string> reasons;
  if (before.kind != now.kind) {
    reasons.push_back(fmt::format("{} became {}", before.kind, now.kind));
  }
  if (const std::string old = driver_version(before), fresh = driver_version(now); old != fresh) {
    reasons.push_back(fmt::format("driver {} became {}", old, fresh));
  }
  if (const auto names = only_in(now, before); !names.empty()) {
    reasons.push_back("added: " + discover::list_text(names));
  }
  if (const auto names = only_in(before, now); !names.empty()) {
    reasons.push_back("removed: " + discover::list_text(names));
  }
  if (reasons.empty()) {
    reasons.emplace_back(before.devices == now.devices ? "files, device nodes or hooks changed"
                                                       : "device nodes changed");
  }
  std::string text;
  for (const std::string& reason : reasons) {
    text.append(text.empty() ? "" : "; ").append(reason);
  }
  return text;
}

}  // namespace gpushm::cli
