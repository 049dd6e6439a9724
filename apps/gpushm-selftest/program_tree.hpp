// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::selftest {

/// The programs of the unpacked test kit or build tree that contains this program. Thread-safety:
/// distinct objects: safe; shared objects: const members safe.
class program_tree {
 public:
  /// Locates the tree from the path of the running program. Throws `error` (system_error).
  program_tree();

  [[nodiscard]] std::optional<std::string> find(const std::string& name) const;
  /// Names that end in `suffix`, sorted.
  [[nodiscard]] std::vector<std::string> with_suffix(const std::string& suffix) const;
  /// Names that begin with `prefix`, sorted.
  [[nodiscard]] std::vector<std::string> with_prefix(const std::string& prefix) const;
  /// The source file that checks gpushm's driver declarations against cuda.h, and its include
  /// directories.
  struct abi_sources {
    std::string file;
    std::vector<std::string> include_directories;
  };
  [[nodiscard]] std::optional<abi_sources> abi() const;
  /// The CTest label of a test program: "unit", "process", "container" or "gpu", with the suffix
  /// "-grpc" if it uses gRPC; empty for any other program.
  [[nodiscard]] std::string label_of(const std::string& name) const;
  /// Environment variables that the tests need to find their helpers.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

 private:
  std::string root_;
  bool unpacked_ = false;                                      ///< a test kit, not a build tree
  std::vector<std::pair<std::string, std::string>> programs_;  ///< name and path, sorted
  std::vector<std::pair<std::string, std::string>> labels_;    ///< name and label of each test
};

}  // namespace gpushm::selftest
