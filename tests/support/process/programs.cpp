// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/programs.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split_path(const char* value) {
  std::vector<std::string> parts;
  std::istringstream stream(value != nullptr ? value : "");
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) {
      parts.push_back(part);
    }
  }
  return parts;
}

std::optional<std::string> first_executable(const std::vector<std::string>& directories,
                                            const std::string& name) {
  for (const auto& directory : directories) {
    const auto candidate = fs::path(directory) / name;
    std::error_code failed;
    if (fs::is_regular_file(candidate, failed) && ::access(candidate.c_str(), X_OK) == 0) {
      return fs::absolute(candidate).lexically_normal().string();
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_own_program(const std::string& name) {
  auto directories = split_path(std::getenv("GPUSHM_TEST_PATH"));
  std::error_code failed;
  const auto self = fs::read_symlink("/proc/self/exe", failed).parent_path();
  const fs::path build = GPUSHM_TESTING_BUILD_DIR;
  for (const auto& directory : {self,
                                self / ".." / "bin",
                                build / "bin",
                                build / "apps" / "gpushm",
                                build / "apps" / "gpushm-cdi-hook",
                                build / "apps" / "gpushm-keeper",
                                build / "apps" / "gpushm-brokerd",
                                build / "apps" / "gpushm-oci-runtime",
                                build / "apps" / "gpushmd",
                                build / "tests" / "process",
                                build / "tests" / "container",
                                build / "tests" / "timelines",
                                build / "testing" / "fake_driver",
                                build / "testing" / "fake_kube_api",
                                build / "testing" / "fake_kubelet",
                                build / "testing" / "preload"}) {
    directories.push_back(directory.string());
  }
  return first_executable(directories, name);
}

std::string own_program(const std::string& name) {
  auto program = find_own_program(name);
  if (!program) {
    throw harness_error("no program " + name +
                        " beside this test or in the build tree (build it, or " +
                        "set GPUSHM_TEST_PATH to its directory)");
  }
  return *program;
}

std::string own_library(const std::string& name) {
  std::error_code failed;
  const auto self = fs::read_symlink("/proc/self/exe", failed).parent_path();
  const fs::path build = GPUSHM_TESTING_BUILD_DIR;
  for (const auto& directory : {self,
                                self / ".." / "lib" / "fake",
                                build / "testing" / "share_shim",
                                build / "testing" / "preload",
                                build / "src" / "ipc",
                                build,
                                self / ".." / "lib"}) {
    if (fs::is_regular_file(directory / name, failed)) {
      return fs::absolute(directory / name).lexically_normal().string();
    }
  }
  throw harness_error("no library " + name + " beside this test or in the build tree (build it)");
}

std::optional<std::string> find_in_path(const std::string& name) {
  auto directories = split_path(std::getenv("PATH"));
  for (const char* usual : {"/usr/sbin", "/usr/bin", "/sbin", "/bin"}) {
    directories.emplace_back(usual);
  }
  return first_executable(directories, name);
}

std::string tree_of_program(const std::string& path) {
  const auto program = fs::absolute(path).lexically_normal();
  const fs::path build = GPUSHM_TESTING_BUILD_DIR;
  const auto relative = program.lexically_relative(build);
  if (!relative.empty() && *relative.begin() != "..") {
    return build.string();
  }
  return program.parent_path().parent_path().string();
}

}  // namespace gpushm_testing
