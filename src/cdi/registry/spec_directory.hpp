// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "yaml/problem.hpp"

namespace gpushm::cdi {

/// Whether engines read a file of this name: ".json" and ".yaml", hidden ones too, ".yml" not.
[[nodiscard]] bool is_document_name(std::string_view name);

/// By what a changed file is told from an unchanged one.
struct file_stamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size_bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;  ///< its status
  bool operator==(const file_stamp&) const = default;
};

/// Links followed. Nothing when it is not there or cannot be looked at.
[[nodiscard]] std::optional<file_stamp> stamp_of(const std::string& path);

/// Whether the file may change once more without its stamp telling: the clock of file systems
/// ticks slowly.
[[nodiscard]] bool is_fresh(const file_stamp& stamp);

/// The documents of a directory, by name, without its subdirectories. A directory that is not there
/// is empty; one that cannot be read is a problem. Blocks as long as listing takes.
[[nodiscard]] std::vector<std::string> list_documents(const std::string& directory,
                                                      std::vector<yaml::problem>& problems);

}  // namespace gpushm::cdi
