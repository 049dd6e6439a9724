// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"
#include "yaml/problem.hpp"

namespace gpushm::cdi {

/// "/etc/cdi", "/var/run/cdi": later ones have priority.
[[nodiscard]] const std::vector<std::string>& default_directories();

/// A document of a directory.
struct source {
  std::string path;
  std::size_t priority = 0;  ///< index of its directory
  document content;
  std::vector<yaml::problem> problems;  ///< its own; not used when there are any
  std::vector<yaml::problem> warnings;
};

struct registered_device {
  const source* from = nullptr;
  const device* found = nullptr;
};

/// The devices of all documents (".json" and ".yaml", not in subdirectories) of some directories. A
/// device that two valid documents of equal priority define is in conflict at that priority: it
/// resolves to nothing, unless a higher priority defines it once. A directory that is not there is
/// empty.
///
/// Distinct objects: safe. Shared objects: const members safe.
class registry {
 public:
  /// Reads everything. Never throws but for memory: what is wrong is among the problems.
  explicit registry(std::vector<std::string> directories = default_directories());

  /// Reads again what has changed since (by size, inode, and times of modification and status
  /// change). Returns whether anything changed; if so, pointers given out before become invalid.
  bool refresh();

  /// Nothing of both is null when there is no such device, or it is in conflict.
  [[nodiscard]] registered_device find(std::string_view qualified_name) const;
  /// By qualified name; without those in conflict.
  [[nodiscard]] const std::map<std::string, registered_device, std::less<>>& devices() const;
  /// Every document found, usable or not, by priority and name.
  [[nodiscard]] const std::vector<std::shared_ptr<const source>>& sources() const;
  /// Of directories and documents, then conflicts (rule "conflict", once for each document of it).
  [[nodiscard]] std::vector<yaml::problem> problems() const;
  /// Why `find` gives nothing, as a sentence that names the document or the nearest device's name.
  [[nodiscard]] std::string why_not(std::string_view qualified_name) const;
  [[nodiscard]] const std::vector<std::string>& directories() const;

 private:
  struct state;
  // Replaced as a whole: a copy keeps what it has.
  std::shared_ptr<const state> state_;
};

}  // namespace gpushm::cdi
