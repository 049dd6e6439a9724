// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "containers/yaml/tree.hpp"

namespace gpushm_tests {

using gpushm::yaml::node;

/// One object of a file with one or more, and its position.
struct manifest {
  std::string file;
  int lines_before = 0;  ///< lines of the file before this document
  std::shared_ptr<gpushm::yaml::tree> tree;
  std::string version;  ///< "resource.k8s.io/v1"
  std::string kind;
  std::string name;

  [[nodiscard]] const gpushm::yaml::node& root() const { return *tree->root; }
  /// "FILE:LINE:COLUMN".
  [[nodiscard]] std::string place(const gpushm::yaml::node& node) const;
};

/// All documents of a text except empty ones. Throws `std::runtime_error` with the position of a
/// YAML error or of a document without apiVersion, kind and metadata.name.
[[nodiscard]] std::vector<manifest> read_manifests(const std::string& text,
                                                   const std::string& file);

/// The value below `node` at these keys; null if it does not exist.
[[nodiscard]] const gpushm::yaml::node* find(const gpushm::yaml::node& node,
                                             std::initializer_list<std::string_view> keys);
/// As `find`, as text; empty if it does not exist or is not a scalar.
[[nodiscard]] std::string text_at(const gpushm::yaml::node& node,
                                  std::initializer_list<std::string_view> keys);
/// The elements of a list; empty if it is null or not a list.
[[nodiscard]] std::vector<const gpushm::yaml::node*> elements(const gpushm::yaml::node* list);
/// As `elements`, as texts.
[[nodiscard]] std::vector<std::string> texts(const gpushm::yaml::node* list);
/// The keys of a mapping, in order.
[[nodiscard]] std::vector<std::string> keys_of(const gpushm::yaml::node* mapping);

/// The spec of a pod or of an object's pod template; null for other objects.
[[nodiscard]] const gpushm::yaml::node* pod_spec(const manifest& object);
/// Its containers, including init containers.
[[nodiscard]] std::vector<const gpushm::yaml::node*> containers(const gpushm::yaml::node& spec);

}  // namespace gpushm_tests
