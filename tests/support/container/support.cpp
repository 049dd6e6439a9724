// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container/support.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/container/container.hpp"

namespace gpushm_testing {
namespace {

std::optional<std::string> try_container(bool in_user_namespace) {
  if (::geteuid() != 0) {
    return "containers need root";
  }
  if (!find_runc()) {
    return "no runc in $PATH or $GPUSHM_RUNC";
  }
  container_options options;
  options.argv = {"/bin/true"};
  if (in_user_namespace) {
    options.user_ns.emplace();
  }
  try {
    auto probe = container::start(options);
    const auto status = probe.wait_exit(std::chrono::seconds(20));
    if (!status.success()) {
      return "runc cannot run a container here (" + status.text() + ")\n" + probe.all_output();
    }
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return std::nullopt;
}

}  // namespace

std::optional<gpushm::app::oci::runtime> find_runc() {
  const char* chosen = std::getenv("GPUSHM_RUNC");
  const bool any = chosen != nullptr && *chosen != '\0';
  return gpushm::app::oci::find_runtime(any ? chosen : "runc");
}

std::vector<std::string> cgroups_named(const std::string& prefix) {
  namespace fs = std::filesystem;
  std::vector<std::string> result;
  // Only as deep as the containers' cgroups are created: deeper ones disappear during the search.
  const auto look_in = [&](const fs::path& directory) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      if (entry.path().filename().string().starts_with(prefix)) {
        result.push_back(entry.path().string());
      }
    }
  };
  look_in("/sys/fs/cgroup");
  for (const auto& hierarchy : fs::directory_iterator("/sys/fs/cgroup")) {
    look_in(hierarchy.path());
  }
  return result;
}

std::optional<std::string> why_no_containers(bool in_user_namespace) {
  static const auto plain = try_container(false);
  if (!in_user_namespace || plain) {
    return plain;
  }
  static const auto with_user_namespace = try_container(true);
  return with_user_namespace;
}

}  // namespace gpushm_testing
