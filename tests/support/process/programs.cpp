// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/programs.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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

fs::path own_directory() {
  std::error_code failed;
  return fs::read_symlink("/proc/self/exe", failed).parent_path();
}

/// The only file of this name that the build tree makes, if it has been built.
std::optional<std::string> built_file(const std::string& name) {
  std::ifstream list(fs::path(GPUSHM_TESTING_BUILD_DIR) / "programs.txt");
  std::optional<std::string> match;
  for (std::string line; std::getline(list, line);) {
    std::error_code failed;
    if (fs::path(line).filename() != name || !fs::is_regular_file(line, failed)) {
      continue;
    }
    if (match && *match != line) {
      throw harness_error("the build tree has two files " + name + ": " + *match + " and " + line);
    }
    match = line;
  }
  return match;
}

}  // namespace

std::optional<std::string> find_own_program(const std::string& name) {
  auto directories = split_path(std::getenv("GPUSHM_TEST_PATH"));
  const auto self = own_directory();
  directories.push_back(self.string());
  directories.push_back((self / ".." / "bin").string());
  if (auto program = first_executable(directories, name)) {
    return program;
  }
  return built_file(name);
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
  const auto self = own_directory();
  std::error_code failed;
  for (const auto& directory : {self, self / ".." / "lib" / "fake", self / ".." / "lib"}) {
    if (fs::is_regular_file(directory / name, failed)) {
      return fs::absolute(directory / name).lexically_normal().string();
    }
  }
  if (auto library = built_file(name)) {
    return *library;
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
