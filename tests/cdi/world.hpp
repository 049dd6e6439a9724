// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpushm_tests {

/// A temporary directory.
class scratch_directory {
 public:
  scratch_directory() : root_((std::filesystem::temp_directory_path() / "cdi.XXXXXX").string()) {
    if (::mkdtemp(root_.data()) == nullptr) {
      throw std::runtime_error("no temporary directory");
    }
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return root_ + "/" + name; }

  /// Writes a file and creates its parent directories.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = path(name);
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

  [[nodiscard]] std::vector<std::string> names(const std::string& directory) const {
    std::vector<std::string> result;
    for (const auto& each : std::filesystem::directory_iterator(path(directory))) {
      result.push_back(each.path().filename().string());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  std::string root_;
};

/// A valid document of one device with one variable.
inline std::string small_document(const std::string& kind,
                                  const std::string& device,
                                  const std::string& env = "A=b") {
  return "cdiVersion: 0.5.0\nkind: " + kind + "\ndevices: [{name: \"" + device +
         "\", containerEdits: {env: [\"" + env + "\"]}}]\n";
}

}  // namespace gpushm_tests
