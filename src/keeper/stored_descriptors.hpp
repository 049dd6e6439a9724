// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/unique_fd.hpp"
#include "keeper/inherited_descriptors.hpp"

namespace gpushm::keeper {

/// Descriptors by name, in the order in which they were added. Several may have the same name.
/// Adding and removing take constant time.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class stored_descriptors {
 public:
  void add(std::string name, base::unique_fd descriptor) {
    all_.push_back({std::move(name), std::move(descriptor)});
    index_.emplace(all_.back().name, std::prev(all_.end()));
  }
  /// Closes all with this name.
  void remove(const std::string& name) {
    const auto [first, last] = index_.equal_range(name);
    for (auto at = first; at != last; ++at) {
      all_.erase(at->second);
    }
    index_.erase(first, last);
  }
  void assign(std::list<named_descriptor> all) {
    clear();
    all_ = std::move(all);
    for (auto at = all_.begin(); at != all_.end(); ++at) {
      index_.emplace(at->name, at);
    }
  }
  void clear() {
    index_.clear();
    all_.clear();
  }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  [[nodiscard]] const std::list<named_descriptor>& all() const noexcept { return all_; }

 private:
  std::list<named_descriptor> all_;
  std::unordered_multimap<std::string, std::list<named_descriptor>::iterator> index_;
};

}  // namespace gpushm::keeper
