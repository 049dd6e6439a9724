// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/yaml/problem.hpp"

namespace gpushm::cdi {

/// Whether engines read a file of this name: ".json" and ".yaml", including hidden files, but not
/// ".yml".
[[nodiscard]] bool is_document_name(std::string_view name);

/// The attributes that detect a changed file.
struct file_stamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size_bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;  ///< status change
  bool operator==(const file_stamp&) const = default;
};

/// Follows links. Empty when the file is missing or inaccessible.
[[nodiscard]] std::optional<file_stamp> stamp_of(const std::string& path);

/// Whether the file may change again without a new stamp: file system clocks are coarse.
[[nodiscard]] bool is_fresh(const file_stamp& stamp);

/// The documents of a directory, sorted by name, without subdirectories. A missing directory is
/// empty; an unreadable one is a problem. Blocks on the file system.
[[nodiscard]] std::vector<std::string> list_documents(const std::string& directory,
                                                      std::vector<yaml::problem>& problems);

}  // namespace gpushm::cdi
