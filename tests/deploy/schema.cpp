// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/schema.hpp"

#include <algorithm>
#include <set>
#include <variant>

#include "containers/yaml/scalar.hpp"

namespace gpushm_tests {

using gpushm::yaml::followed;
using gpushm::yaml::scalar_value;
using gpushm::yaml::value_of;
using nlohmann::json;
using shape = gpushm::yaml::node::shape;

namespace {

constexpr const char* quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity";

bool is_integer(const gpushm::yaml::scalar_value& value) {
  return std::holds_alternative<std::int64_t>(value) ||
         std::holds_alternative<std::uint64_t>(value);
}

bool fits(const gpushm::yaml::scalar_value& value, const std::string& type, bool or_number) {
  const bool number = is_integer(value) || std::holds_alternative<double>(value);
  if (type == "string") {
    return std::holds_alternative<std::string>(value) || (or_number && number);
  }
  if (type == "integer") {
    return is_integer(value);
  }
  if (type == "number") {
    return number;
  }
  return type == "boolean" && std::holds_alternative<bool>(value);
}

std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + '.' + key;
}

}  // namespace

schema::schema(const std::string& text) : file_(json::parse(text)) {}

std::vector<std::string> schema::check(const manifest& object) const {
  std::vector<std::string> problems;
  const auto kind = file_.at("kinds").find(object.version + '/' + object.kind);
  if (kind == file_.at("kinds").end()) {
    problems.push_back(object.place(object.root()) + ": no schema of " + object.kind + " of " +
                       object.version);
  } else {
    const json wanted{{"$ref", *kind}};
    check(object, object.root(), wanted, {}, problems);
  }
  return problems;
}

void schema::check(const manifest& object,
                   const gpushm::yaml::node& given,
                   const json& wanted,
                   const std::string& path,
                   std::vector<std::string>& problems) const {
  const gpushm::yaml::node& value = followed(given);
  if (const auto reference = wanted.find("$ref"); reference != wanted.end()) {
    const auto& name = reference->get_ref<const std::string&>();
    json definition = file_.at("definitions").at(name);
    if (name == quantity) {
      definition["format"] = "int-or-string";
    }
    check(object, value, definition, path, problems);
    return;
  }
  const std::string type = wanted.value("type", "object");
  const auto mismatch = [&](const std::string& is) {
    problems.push_back(object.place(value) + ": " + path + " must be " + type + ", not " + is);
  };
  if (type == "object") {
    check_object(object, value, wanted, path, problems);
  } else if (type == "array") {
    if (value.is != shape::sequence) {
      mismatch("something else");
      return;
    }
    for (std::size_t i = 0; i < value.children.size(); ++i) {
      std::string element = path;
      element.append("[").append(std::to_string(i)).append("]");
      check(object, *value.children[i], wanted.at("items"), element, problems);
    }
  } else if (value.is != shape::scalar) {
    mismatch("a list or an object");
  } else {
    const auto scalar = value_of(value);
    if (!scalar || !fits(*scalar, type, wanted.value("format", "") == "int-or-string")) {
      mismatch(scalar ? std::string(gpushm::yaml::kind_of(*scalar)) : "\"" + value.value + "\"");
    }
  }
}

void schema::check_object(const manifest& object,
                          const gpushm::yaml::node& value,
                          const json& wanted,
                          const std::string& path,
                          std::vector<std::string>& problems) const {
  if (value.is != shape::mapping) {
    problems.push_back(object.place(value) + ": " + path + " must be object, not something else");
    return;
  }
  const auto properties = wanted.find("properties");
  const auto others = wanted.find("additionalProperties");
  std::set<std::string> seen;
  for (std::size_t i = 0; i + 1 < value.children.size(); i += 2) {
    const gpushm::yaml::node& key = followed(*value.children[i]);
    const gpushm::yaml::node& inner = *value.children[i + 1];
    const std::string inner_path = joined(path, key.value);
    if (!seen.insert(key.value).second) {
      problems.push_back(object.place(key) + ": " + inner_path + " is duplicated");
    }
    if (properties != wanted.end() && properties->contains(key.value)) {
      check(object, inner, properties->at(key.value), inner_path, problems);
    } else if (others != wanted.end()) {
      check(object, inner, *others, inner_path, problems);
    } else if (properties != wanted.end()) {
      problems.push_back(object.place(key) + ": " + inner_path + " is not a field");
    }
  }
  for (const json& required : wanted.value("required", json::array())) {
    if (seen.count(required.get<std::string>()) == 0) {
      problems.push_back(object.place(value) + ": " + joined(path, required.get<std::string>()) +
                         " is missing");
    }
  }
}

}  // namespace gpushm_tests
