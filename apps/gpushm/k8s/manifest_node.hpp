// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "containers/yaml/tree.hpp"

namespace gpushm::k8s {

/// A value of a manifest, or a missing value. Members of a missing value are missing too, so paths
/// need no check at each step. Refers to a tree, which must outlive it. Thread-safety: distinct
/// objects: safe; shared objects: safe (immutable).
class manifest_node {
 public:
  manifest_node() = default;
  /// `key`: the node whose place is reported; null: the value itself.
  explicit manifest_node(const yaml::node* value, const yaml::node* key = nullptr)
      : value_(value), key_(key != nullptr ? key : value) {}

  /// Whether the value exists and is not null.
  explicit operator bool() const;
  /// The member of a mapping.
  [[nodiscard]] manifest_node operator[](std::string_view key) const;
  /// The members of a mapping, each key once.
  [[nodiscard]] std::vector<std::pair<std::string, manifest_node>> members() const;
  /// The elements of a list; none for anything else.
  [[nodiscard]] std::vector<manifest_node> elements() const;
  /// The text of a scalar, else "".
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::optional<bool> boolean() const;
  [[nodiscard]] bool is_true() const { return boolean() == true; }

  /// 0 for a missing value.
  [[nodiscard]] int line() const { return key_ == nullptr ? 0 : key_->line; }
  [[nodiscard]] int column() const { return key_ == nullptr ? 0 : key_->column; }
  /// This value, or `fallback` if it is missing.
  [[nodiscard]] manifest_node or_else(const manifest_node& fallback) const {
    return *this ? *this : fallback;
  }

 private:
  const yaml::node* value_ = nullptr;
  const yaml::node* key_ = nullptr;
};

}  // namespace gpushm::k8s
