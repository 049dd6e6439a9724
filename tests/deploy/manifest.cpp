// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/manifest.hpp"

#include <sstream>
#include <stdexcept>

namespace gpushm_tests {

using gpushm::yaml::followed;
using shape = gpushm::yaml::node::shape;

std::string manifest::place(const gpushm::yaml::node& node) const {
  return file + ':' + std::to_string(lines_before + node.line) + ':' + std::to_string(node.column);
}

namespace {

void add(std::vector<manifest>& manifests,
         const std::string& text,
         const std::string& file,
         int lines_before) {
  manifest created;
  created.file = file;
  created.lines_before = lines_before;
  created.tree = std::make_shared<gpushm::yaml::tree>();
  gpushm::yaml::read_yaml(text, *created.tree);
  if (created.tree->failure) {
    throw std::runtime_error(file + ':' +
                             std::to_string(lines_before + created.tree->failure->line) + ": " +
                             created.tree->failure->text);
  }
  if (created.tree->root == nullptr) {
    return;
  }
  created.version = text_at(created.root(), {"apiVersion"});
  created.kind = text_at(created.root(), {"kind"});
  created.name = text_at(created.root(), {"metadata", "name"});
  if (created.version.empty() || created.kind.empty() || created.name.empty()) {
    throw std::runtime_error(created.place(created.root()) +
                             ": no apiVersion, kind or metadata.name");
  }
  manifests.push_back(std::move(created));
}

}  // namespace

std::vector<manifest> read_manifests(const std::string& text, const std::string& file) {
  std::vector<manifest> manifests;
  std::istringstream lines(text);
  std::string document;
  int number = 0;
  int first = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line == "---") {
      add(manifests, document, file, first);
      document.clear();
      first = number;
    } else {
      document.append(line).append("\n");
    }
  }
  add(manifests, document, file, first);
  return manifests;
}

const gpushm::yaml::node* find(const gpushm::yaml::node& node,
                               std::initializer_list<std::string_view> keys) {
  const gpushm::yaml::node* at = &followed(node);
  for (const std::string_view key : keys) {
    const gpushm::yaml::node* next = nullptr;
    if (at->is == shape::mapping) {
      for (std::size_t i = 0; i + 1 < at->children.size(); i += 2) {
        if (followed(*at->children[i]).value == key) {
          next = &followed(*at->children[i + 1]);
        }
      }
    }
    if (next == nullptr) {
      return nullptr;
    }
    at = next;
  }
  return at;
}

std::string text_at(const gpushm::yaml::node& node, std::initializer_list<std::string_view> keys) {
  const gpushm::yaml::node* found = find(node, keys);
  return found != nullptr && found->is == shape::scalar ? found->value : std::string();
}

std::vector<const gpushm::yaml::node*> elements(const gpushm::yaml::node* list) {
  std::vector<const gpushm::yaml::node*> nodes;
  if (list != nullptr && list->is == shape::sequence) {
    for (const gpushm::yaml::node* each : list->children) {
      nodes.push_back(&followed(*each));
    }
  }
  return nodes;
}

std::vector<std::string> texts(const gpushm::yaml::node* list) {
  std::vector<std::string> found;
  for (const gpushm::yaml::node* each : elements(list)) {
    found.push_back(each->value);
  }
  return found;
}

std::vector<std::string> keys_of(const gpushm::yaml::node* mapping) {
  std::vector<std::string> result;
  if (mapping != nullptr && mapping->is == shape::mapping) {
    for (std::size_t i = 0; i < mapping->children.size(); i += 2) {
      result.push_back(followed(*mapping->children[i]).value);
    }
  }
  return result;
}

const gpushm::yaml::node* pod_spec(const manifest& object) {
  if (object.kind == "Pod") {
    return find(object.root(), {"spec"});
  }
  return find(object.root(), {"spec", "template", "spec"});
}

std::vector<const gpushm::yaml::node*> containers(const gpushm::yaml::node& spec) {
  auto all = elements(find(spec, {"initContainers"}));
  for (const gpushm::yaml::node* each : elements(find(spec, {"containers"}))) {
    all.push_back(each);
  }
  return all;
}

}  // namespace gpushm_tests
