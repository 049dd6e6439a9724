// SPDX-License-Identifier: Apache-2.0
#include "tests/support/machines/machines.hpp"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "base/files/file.hpp"
#include "inspect/facts/recording.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;

namespace {

/// The recordings in the source tree if it exists, else those of the unpacked test kit.
fs::path directory() {
  const fs::path source = GPUSHM_MACHINES_DIR;
  return fs::is_directory(source)
             ? source
             : fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share/machines";
}

}  // namespace

std::string machine_path(const std::string& name) {
  return (directory() / (name + ".json")).string();
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory())) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

gpushm::inspect::facts recorded_facts(const std::string& name) {
  const auto text = gpushm::base::read_small_file(machine_path(name), 4UL << 20U);
  if (!text) {
    throw std::runtime_error("no recording " + machine_path(name));
  }
  const auto recorded = gpushm::inspect::recorded_machine::parse(name, *text);
  return gpushm::inspect::gather(*recorded.files, [&] { return recorded.driver; });
}

}  // namespace gpushm_tests
