// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/abi_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "apps/gpushm-selftest/program_run.hpp"

namespace gpushm::selftest {

namespace fs = std::filesystem;

namespace {

// Returns $CUDA_HOME's, else the default toolkit's, else that of the newest version installed.
std::optional<std::string> cuda_include_directory() {
  std::vector<std::string> candidates;
  const char* home =
      std::getenv("CUDA_HOME");  // NOLINT(concurrency-mt-unsafe): no code sets variables
  if (home != nullptr) {
    candidates.push_back(std::string(home) + "/include");
  }
  candidates.emplace_back("/usr/local/cuda/include");
  std::vector<std::string> versioned;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/usr/local", failed)) {
    if (entry.path().filename().string().starts_with("cuda-")) {
      versioned.push_back(entry.path().string() + "/include");
    }
  }
  std::sort(versioned.rbegin(), versioned.rend());
  candidates.insert(candidates.end(), versioned.begin(), versioned.end());
  candidates.emplace_back("/usr/include");
  for (const std::string& directory : candidates) {
    if (fs::exists(directory + "/cuda.h", failed)) {
      return directory;
    }
  }
  return std::nullopt;
}

std::optional<std::string> compiler() {
  for (const char* name : {"c++", "g++", "clang++"}) {
    if (auto path = find_in_path(name)) {
      return path;
    }
  }
  return std::nullopt;
}

}  // namespace

outcome run_abi_check(const program_tree& tree, std::chrono::milliseconds timeout) {
  const auto sources = tree.abi();
  if (!sources) {
    return skipped("the sources of the check are missing");
  }
  const auto include = cuda_include_directory();
  if (!include) {
    return skipped("no cuda.h on this machine");
  }
  const auto cxx = compiler();
  if (!cxx) {
    return skipped("no C++ compiler on this machine");
  }
  std::vector<std::string> argv{*cxx, "-std=c++20", "-fsyntax-only"};
  for (const std::string& directory : sources->include_directories) {
    argv.push_back("-I" + directory);
  }
  argv.insert(argv.end(), {"-isystem", *include, sources->file});
  const program_result ended = run_program(argv, {}, timeout);
  if (!ended.success()) {
    return failed(ended);
  }
  return {verdict::passed, fmt::format("agrees with {}/cuda.h", *include), nullptr, {}};
}

}  // namespace gpushm::selftest
