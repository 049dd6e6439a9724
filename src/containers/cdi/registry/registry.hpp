// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/yaml/problem.hpp"

namespace gpushm::cdi {

/// "/etc/cdi", "/var/run/cdi": later ones have precedence.
[[nodiscard]] const std::vector<std::string>& default_directories();

/// A document of a directory.
struct source {
  std::string path;
  std::size_t priority = 0;  ///< index of its directory
  document content;
  std::vector<yaml::problem> problems;  ///< of this document; it is unused if there are any
  std::vector<yaml::problem> warnings;
};

struct registered_device {
  const source* from = nullptr;
  const device* found = nullptr;
};

/// The devices of all documents (".json" and ".yaml", not in subdirectories) of some directories. A
/// device that two valid documents of equal priority define is in conflict: it does not resolve,
/// even if a directory of higher priority defines it once, as in engines. A missing directory is
/// empty.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class registry {
 public:
  /// Reads everything. Throws only `std::bad_alloc`; errors become problems.
  explicit registry(std::vector<std::string> directories = default_directories());

  /// Rereads changed documents (by size, inode, and times of modification and status change).
  /// Returns whether anything changed; if so, pointers returned before become invalid.
  bool refresh();

  /// Both members are null when the device does not exist or is in conflict.
  [[nodiscard]] registered_device find(std::string_view qualified_name) const;
  /// The devices by qualified name, without devices in conflict.
  [[nodiscard]] const std::map<std::string, registered_device, std::less<>>& devices() const;
  /// Every document found, usable or not, by priority and name.
  [[nodiscard]] const std::vector<std::shared_ptr<const source>>& sources() const;
  /// Problems of directories and documents, then conflicts (rule "conflict", once per document).
  [[nodiscard]] std::vector<yaml::problem> problems() const;
  /// Why `find` returns nothing, as a sentence that names the document or the available devices.
  [[nodiscard]] std::string why_not(std::string_view qualified_name) const;
  [[nodiscard]] const std::vector<std::string>& directories() const;

 private:
  struct state;
  // Replaced as a whole: copies keep the old state.
  std::shared_ptr<const state> state_;
};

}  // namespace gpushm::cdi
