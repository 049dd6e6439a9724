// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/manifest_node.hpp"

#include "containers/yaml/reader.hpp"
#include "containers/yaml/scalar.hpp"

namespace gpushm::k8s {

namespace {

using shape = yaml::node::shape;

/// The reader handles merge keys and repeated keys; the API server reports errors in them.
std::vector<yaml::entry> entries_of(const yaml::node& node) {
  std::vector<yaml::problem> ignored;
  return yaml::reader({}, ignored).entries(node, {});
}

std::optional<yaml::scalar_value> scalar_of(const yaml::node* node) {
  if (node == nullptr || yaml::followed(*node).is != shape::scalar) {
    return std::nullopt;
  }
  return yaml::value_of(yaml::followed(*node));
}

bool is_mapping(const yaml::node* node) {
  return node != nullptr && yaml::followed(*node).is == shape::mapping;
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
    for (const yaml::entry& each : entries_of(*value_)) {
      if (each.key == key) {
        return manifest_node(each.value, each.key_node);
      }
    }
  }
  return {};
}

std::vector<std::pair<std::string, manifest_node>> manifest_node::members() const {
  std::vector<std::pair<std::string, manifest_node>> members;
  if (is_mapping(value_)) {
    for (const yaml::entry& each : entries_of(*value_)) {
      members.emplace_back(each.key, manifest_node(each.value, each.key_node));
    }
  }
  return members;
}

std::vector<manifest_node> manifest_node::elements() const {
  std::vector<manifest_node> members;
  if (value_ != nullptr && yaml::followed(*value_).is == shape::sequence) {
    for (const yaml::node* each : yaml::followed(*value_).children) {
      members.emplace_back(each);
    }
  }
  return members;
}

std::string manifest_node::text() const {
  const auto scalar = scalar_of(value_);
  return scalar ? yaml::as_text(*scalar) : std::string();
}

std::optional<bool> manifest_node::boolean() const {
  const auto scalar = scalar_of(value_);
  const bool* value = scalar ? std::get_if<bool>(&*scalar) : nullptr;
  return value == nullptr ? std::nullopt : std::optional(*value);
}

}  // namespace gpushm::k8s
