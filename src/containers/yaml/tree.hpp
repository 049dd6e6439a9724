// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::yaml {

/// A node of a YAML (or JSON) text, with its position.
struct node {
  enum class shape : std::uint8_t { scalar, sequence, mapping };
  shape is = shape::scalar;
  bool plain = false;  ///< a scalar whose text determines its type
  int line = 0;        ///< 1-based
  int column = 0;
  std::string tag;    ///< long form; empty: none. Scalars only: the reference ignores others
  std::string value;  ///< of a scalar
  std::vector<const yaml::node*> children;  ///< of a mapping: key, value, key, value
  const yaml::node* alias_of = nullptr;     ///< if set, only the position is valid
  bool complete = true;                     ///< its end was read
  std::uint64_t nodes = 1;                  ///< with aliases expanded
  std::uint64_t aliased_nodes = 0;          ///< of these, the ones from aliases
};

struct failure {
  int line = 0;
  int column = 0;
  std::string rule;
  std::string text;
};

/// The first document of a text. Do not copy: nodes point to each other.
struct tree {
  std::deque<yaml::node> nodes;
  const yaml::node* root = nullptr;  ///< null: there is no document
  std::optional<yaml::failure> failure;
  /// Start of the text after the document.
  std::optional<yaml::failure> rest;
};

/// Throws only `std::bad_alloc`. Documents that nest too deeply, or whose aliases expand too much,
/// are a failure. Precondition: `out` is empty.
void read_yaml(std::string_view text, yaml::tree& out);

/// All documents of a text in order, empty ones included. On a failure, the last one contains it
/// and reading stops. Otherwise as `read_yaml`, but accepts syntax that only container engines
/// reject.
void read_yaml_documents(std::string_view text, std::list<yaml::tree>& out);

/// The node itself, or the target of an alias.
[[nodiscard]] inline const yaml::node& followed(const yaml::node& node) {
  return node.alias_of != nullptr ? *node.alias_of : node;
}

}  // namespace gpushm::yaml
