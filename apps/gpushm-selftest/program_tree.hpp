// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::selftest {

/// The programs that belong to this one: of the unpacked tarball that it is part of, or of its
/// build tree. Distinct objects: safe. Shared objects: const members safe.
class program_tree {
 public:
  /// Looks around the running program. Throws `error` (system_error).
  program_tree();

  [[nodiscard]] std::optional<std::string> find(const std::string& name) const;
  /// Those whose names end in `suffix`, sorted by name.
  [[nodiscard]] std::vector<std::string> with_suffix(const std::string& suffix) const;
  /// Those whose names begin with `prefix`, sorted by name.
  [[nodiscard]] std::vector<std::string> with_prefix(const std::string& prefix) const;
  /// Paths of the sources that check our declarations against a cuda.h: the file, and where it
  /// includes from.
  struct abi_sources {
    std::string file;
    std::vector<std::string> include_directories;
  };
  [[nodiscard]] std::optional<abi_sources> abi() const;
  /// What CTest calls a test program: "unit", "process", "container" or "gpu", with "-grpc" after
  /// it where gRPC runs; empty for a program that is none.
  [[nodiscard]] std::string label_of(const std::string& name) const;
  /// Variables that the tests need to find their helpers.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const;

 private:
  std::string root_;
  bool unpacked_ = false;                                      ///< a tarball, not a build tree
  std::vector<std::pair<std::string, std::string>> programs_;  ///< name and path, sorted
  std::vector<std::pair<std::string, std::string>> labels_;    ///< name of a test and its label
};

}  // namespace gpushm::selftest
