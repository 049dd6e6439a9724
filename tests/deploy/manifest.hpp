// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "yaml/tree.hpp"

namespace gpushm_tests {

using gpushm::yaml::node;

/// One object of a file that may have several, and where it is.
struct manifest {
  std::string file;
  int lines_before = 0;  ///< of the file, before this document
  std::shared_ptr<gpushm::yaml::tree> tree;
  std::string version;  ///< "resource.k8s.io/v1"
  std::string kind;
  std::string name;

  [[nodiscard]] const gpushm::yaml::node& root() const { return *tree->root; }
  /// "FILE:LINE:COLUMN".
  [[nodiscard]] std::string place(const gpushm::yaml::node& node) const;
};

/// All documents of a text; empty ones are left out. Throws `std::runtime_error` with the place for
/// what is no YAML, or no object with apiVersion, kind and metadata.name.
[[nodiscard]] std::vector<manifest> read_manifests(const std::string& text,
                                                   const std::string& file);

/// The value below `from` by these keys; null when there is none.
[[nodiscard]] const gpushm::yaml::node* find(const gpushm::yaml::node& from,
                                             std::initializer_list<std::string_view> keys);
/// The same as text; empty when there is none or it is no scalar.
[[nodiscard]] std::string text_at(const gpushm::yaml::node& from,
                                  std::initializer_list<std::string_view> keys);
/// The elements of a list; none when it is null or something else.
[[nodiscard]] std::vector<const gpushm::yaml::node*> elements(const gpushm::yaml::node* list);
/// The same as texts.
[[nodiscard]] std::vector<std::string> texts(const gpushm::yaml::node* list);
/// The keys of a mapping, in order.
[[nodiscard]] std::vector<std::string> keys_of(const gpushm::yaml::node* mapping);

/// The pod that an object is or makes; null for one that does not.
[[nodiscard]] const gpushm::yaml::node* pod_spec(const manifest& object);
/// Its containers, those that run first included.
[[nodiscard]] std::vector<const gpushm::yaml::node*> containers(const gpushm::yaml::node& spec);

}  // namespace gpushm_tests
