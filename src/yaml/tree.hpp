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

/// A node of a YAML (or JSON) text, with its place.
struct node {
  enum class shape : std::uint8_t { scalar, sequence, mapping };
  shape is = shape::scalar;
  bool plain = false;  ///< a scalar that its looks give a type
  int line = 0;        ///< from 1
  int column = 0;
  std::string tag;    ///< long form; empty: none. Of scalars only: the reference ignores the others
  std::string value;  ///< of a scalar
  std::vector<const yaml::node*> children;  ///< of a mapping: key, value, key, value
  const yaml::node* alias_of = nullptr;     ///< then nothing else counts but the place
  bool complete = true;                     ///< its end has been seen
  std::uint64_t nodes = 1;                  ///< with aliases followed
  std::uint64_t aliased_nodes = 0;          ///< of them, those behind an alias
};

struct failure {
  int line = 0;
  int column = 0;
  std::string rule;
  std::string text;
};

/// The first document of a text. Move-only in effect: nodes point to each other.
struct tree {
  std::deque<yaml::node> nodes;
  const yaml::node* root = nullptr;  ///< null: there is no document
  std::optional<yaml::failure> failure;
  /// Where text begins that no document of the tree has.
  std::optional<yaml::failure> rest;
};

/// Never throws but for memory. Documents that nest too deeply, or grow out of proportion by
/// aliases, are a failure. `out` is empty before.
void read_yaml(std::string_view text, yaml::tree& out);

/// All documents of a text, in their order, those without content too; the last one has the failure
/// when there is one, and nothing after it is read. As `read_yaml` otherwise, but for what only
/// container engines do not read, which is taken.
void read_yaml_documents(std::string_view text, std::list<yaml::tree>& out);

/// The node itself, or what an alias stands for.
[[nodiscard]] inline const yaml::node& followed(const yaml::node& node) {
  return node.alias_of != nullptr ? *node.alias_of : node;
}

}  // namespace gpushm::yaml
