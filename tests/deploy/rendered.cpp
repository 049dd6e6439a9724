// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/rendered.hpp"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;

std::optional<std::string> why_no_kubectl() {
  if (!gpushm_testing::find_in_path("kubectl")) {
    return "no kubectl in $PATH";
  }
  return std::nullopt;
}

std::vector<manifest> rendered(const std::string& directory) {
  gpushm_testing::spawn_options options;
  options.argv = {"kubectl", "kustomize", (fs::path(GPUSHM_SOURCE_DIR) / directory).string()};
  const auto done = gpushm_testing::run_program(
      options, gpushm_testing::scaled_timeout(std::chrono::seconds(60)));
  if (!done.status.success()) {
    throw std::runtime_error(directory + ": " + done.status.text() + "\n" + done.err);
  }
  return read_manifests(done.out, directory);
}

const manifest& object(const std::vector<manifest>& objects,
                       std::string_view kind,
                       std::string_view name) {
  const auto match = std::find_if(objects.begin(), objects.end(), [&](const manifest& each) {
    return each.kind == kind && each.name == name;
  });
  if (match == objects.end()) {
    throw std::runtime_error(std::string("no ").append(kind).append(" ").append(name));
  }
  return *match;
}

const manifest& only_object(const std::vector<manifest>& objects, std::string_view kind) {
  const manifest* match = nullptr;
  for (const manifest& each : objects) {
    if (each.kind == kind) {
      if (match != nullptr) {
        throw std::runtime_error(std::string("two objects of the kind ").append(kind));
      }
      match = &each;
    }
  }
  if (match == nullptr) {
    throw std::runtime_error(std::string("no object of the kind ").append(kind));
  }
  return *match;
}

std::vector<std::string> kustomizations() {
  const fs::path root(GPUSHM_SOURCE_DIR);
  std::vector<std::string> match;
  for (const auto& entry : fs::recursive_directory_iterator(root / "deploy")) {
    if (entry.path().filename() == "kustomization.yaml") {
      match.push_back(entry.path().parent_path().lexically_relative(root).string());
    }
  }
  std::sort(match.begin(), match.end());
  return match;
}

}  // namespace gpushm_tests
