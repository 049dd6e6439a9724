// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/program_tree.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/process/child_process.hpp"

namespace gpushm::selftest {

namespace fs = std::filesystem;

namespace {

// Below build/apps/gpushm-selftest/gpushm-selftest.
constexpr int levels_in_build_tree = 3;

bool is_program(const fs::directory_entry& entry) {
  std::error_code failed;
  return entry.is_regular_file(failed) && !entry.path().has_extension() &&
         ::access(entry.path().c_str(), X_OK) == 0;
}

}  // namespace

program_tree::program_tree() {
  fs::path path = base::executable_path();
  unpacked_ = path.parent_path().filename() == "bin";
  for (int level = 0; level < (unpacked_ ? 2 : levels_in_build_tree); ++level) {
    path = path.parent_path();
  }
  root_ = path.string();
  const fs::path from = unpacked_ ? path / "bin" : path;
  const auto options = fs::directory_options::skip_permission_denied;
  std::error_code failed;
  for (auto it = fs::recursive_directory_iterator(from, options, failed);
       it != fs::recursive_directory_iterator();
       it.increment(failed)) {
    if (it->path().filename() == "CMakeFiles") {
      it.disable_recursion_pending();
    } else if (is_program(*it)) {
      programs_.emplace_back(it->path().filename().string(), it->path().string());
    }
  }
  std::sort(programs_.begin(), programs_.end());
  std::ifstream list(unpacked_ ? path / "share" / "tests.txt" : path / "tests.txt");
  for (std::string name, label; list >> name >> label;) {
    labels_.emplace_back(name, label);
  }
}

std::string program_tree::label_of(const std::string& name) const {
  for (const auto& [known, label] : labels_) {
    if (known == name) {
      return label;
    }
  }
  return {};
}

std::optional<std::string> program_tree::find(const std::string& name) const {
  for (const auto& [known, path] : programs_) {
    if (known == name) {
      return path;
    }
  }
  return std::nullopt;
}

std::vector<std::string> program_tree::with_suffix(const std::string& suffix) const {
  std::vector<std::string> programs;
  for (const auto& [name, path] : programs_) {
    if (name.ends_with(suffix)) {
      programs.push_back(name);
    }
  }
  return programs;
}

std::vector<std::string> program_tree::with_prefix(const std::string& prefix) const {
  std::vector<std::string> programs;
  for (const auto& [name, path] : programs_) {
    if (name.starts_with(prefix)) {
      programs.push_back(name);
    }
  }
  return programs;
}

std::optional<program_tree::abi_sources> program_tree::abi() const {
  const fs::path share = fs::path(root_) / "share/abi";
  const fs::path source = GPUSHM_SOURCE_DIR;
  std::error_code failed;
  if (unpacked_ && fs::exists(share / "abi_check.cpp", failed)) {
    return abi_sources{share / "abi_check.cpp", {share.string(), (share / "include").string()}};
  }
  const fs::path file = source / "tests/conformance/abi_check.cpp";
  if (!unpacked_ && fs::exists(file, failed)) {
    return abi_sources{file.string(), {(source / "src").string(), (source / "include").string()}};
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> program_tree::environment() const {
  if (!unpacked_) {
    return {};
  }
  return {{"GPUSHM_TEST_PATH", root_ + "/bin"}, {"GPUSHM_FAKE_DRIVER_DIR", root_ + "/lib/fake"}};
}

}  // namespace gpushm::selftest
