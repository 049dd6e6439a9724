// SPDX-License-Identifier: Apache-2.0
#include "k8s/manifest_node.hpp"

#include "spec/yaml_reader.hpp"
#include "spec/yaml_scalar.hpp"

namespace gpushm::k8s {

namespace {

using shape = cdi::yaml_node::shape;

/// Keys that merge and repeat are the reader's business; what is wrong with them is the server's.
std::vector<cdi::yaml_entry> entries_of(const cdi::yaml_node& node) {
  std::vector<cdi::problem> not_told;
  return cdi::yaml_reader({}, not_told).entries(node, {});
}

std::optional<cdi::yaml_value> scalar_of(const cdi::yaml_node* node) {
  if (node == nullptr || cdi::followed(*node).is != shape::scalar) {
    return std::nullopt;
  }
  return cdi::value_of(cdi::followed(*node));
}

bool is_mapping(const cdi::yaml_node* node) {
  return node != nullptr && cdi::followed(*node).is == shape::mapping;
}

}  // namespace

manifest_node::operator bool() const {
  if (value_ == nullptr) {
    return false;
  }
  const auto scalar = scalar_of(value_);
  return !scalar || scalar->index() != 0;
}

manifest_node manifest_node::operator[](std::string_view key) const {
  if (is_mapping(value_)) {
    for (const cdi::yaml_entry& each : entries_of(*value_)) {
      if (each.key == key) {
        return manifest_node(each.value, each.key_node);
      }
    }
  }
  return {};
}

std::vector<std::pair<std::string, manifest_node>> manifest_node::members() const {
  std::vector<std::pair<std::string, manifest_node>> found;
  if (is_mapping(value_)) {
    for (const cdi::yaml_entry& each : entries_of(*value_)) {
      found.emplace_back(each.key, manifest_node(each.value, each.key_node));
    }
  }
  return found;
}

std::vector<manifest_node> manifest_node::elements() const {
  std::vector<manifest_node> found;
  if (value_ != nullptr && cdi::followed(*value_).is == shape::sequence) {
    for (const cdi::yaml_node* each : cdi::followed(*value_).children) {
      found.emplace_back(each);
    }
  }
  return found;
}

std::string manifest_node::text() const {
  const auto scalar = scalar_of(value_);
  return scalar ? cdi::as_text(*scalar) : std::string();
}

std::optional<bool> manifest_node::boolean() const {
  const auto scalar = scalar_of(value_);
  const bool* value = scalar ? std::get_if<bool>(&*scalar) : nullptr;
  return value == nullptr ? std::nullopt : std::optional(*value);
}

}  // namespace gpushm::k8s
