// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/leftovers.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/report/log.hpp"
#include "kubernetes/kubelet_api/unix_path.hpp"

namespace gpushm::device_plugin {

leftovers::leftovers(std::string directory, const std::string& prefix)
    : directory_(std::move(directory)), name_prefix_(prefix + "-") {}

std::map<std::string, socket_identity> leftovers::without_listener() const {
  namespace fs = std::filesystem;
  std::map<std::string, socket_identity> entries;
  std::error_code failed;
  for (fs::directory_iterator each(directory_, failed); !failed && each != fs::directory_iterator();
       each.increment(failed)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(name_prefix_) || !name.ends_with(".sock")) {
      continue;
    }
    const std::string path = each->path().string();
    const auto identity = socket_at(path);
    if (identity && kubelet::has_no_listener(path)) {
      entries.emplace(path, *identity);
    }
  }
  return entries;
}

void leftovers::scan(clock::time_point now) {
  suspects_ = without_listener();
  due_ = suspects_.empty() ? clock::time_point::max() : now + recheck_delay;
}

void leftovers::advance(clock::time_point now) {
  if (now < due_) {
    return;
  }
  due_ = clock::time_point::max();
  for (const auto& [path, identity] : without_listener()) {
    const auto before = suspects_.find(path);
    if (before != suspects_.end() && before->second == identity && ::unlink(path.c_str()) == 0) {
      base::log(log_level::info,
                fmt::format("device plugin: removed {}, left by an exited process", path));
    }
  }
  suspects_.clear();
}

}  // namespace gpushm::device_plugin
