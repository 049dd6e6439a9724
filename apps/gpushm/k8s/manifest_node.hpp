// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "yaml/tree.hpp"

namespace gpushm::k8s {

/// A value of a manifest, or the lack of one: what is missing has nothing in it, so that paths can
/// be followed without asking at each step. Refers to a tree, which must stay.
///
/// Distinct objects: safe. Shared objects: safe (immutable).
class manifest_node {
 public:
  manifest_node() = default;
  /// `key`: where the value is told to be; null: at the value itself.
  explicit manifest_node(const yaml::node* value, const yaml::node* key = nullptr)
      : value_(value), key_(key != nullptr ? key : value) {}

  /// It is there, and not null.
  explicit operator bool() const;
  /// Of a mapping.
  [[nodiscard]] manifest_node operator[](std::string_view key) const;
  /// Of a mapping, each key once.
  [[nodiscard]] std::vector<std::pair<std::string, manifest_node>> members() const;
  /// Of a list; none for anything else.
  [[nodiscard]] std::vector<manifest_node> elements() const;
  /// Of a scalar, else "".
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::optional<bool> boolean() const;
  [[nodiscard]] bool is_true() const { return boolean() == true; }

  /// 0 for what is missing.
  [[nodiscard]] int line() const { return key_ == nullptr ? 0 : key_->line; }
  [[nodiscard]] int column() const { return key_ == nullptr ? 0 : key_->column; }
  /// The value with another place: for what should be there and is not.
  [[nodiscard]] manifest_node or_else(const manifest_node& fallback) const {
    return *this ? *this : fallback;
  }

 private:
  const yaml::node* value_ = nullptr;
  const yaml::node* key_ = nullptr;
};

}  // namespace gpushm::k8s
