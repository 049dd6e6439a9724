// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/store.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/files/file.hpp"
#include "base/text/text.hpp"

namespace gpushm::testing {

namespace {

using nlohmann::json;

std::string new_uid() {
  std::array<std::uint8_t, 16> bytes{};
  base::random_bytes(bytes);
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0fU) | 0x40U);
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3fU) | 0x80U);
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    text += at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "";
    text += digits[bytes.at(at) >> 4U];
    text += digits[bytes.at(at) & 0xfU];
  }
  return text;
}

std::string field_of(const json& object, const std::string& name) {
  std::string pointer = "/" + name;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const json::json_pointer where(pointer);
  return object.contains(where) && object.at(where).is_string()
             ? object.at(where).get<std::string>()
             : std::string();
}

}  // namespace

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

std::optional<field_selector> parse_selector(const std::string& text) {
  constexpr auto known = std::to_array<std::string_view>(
      {"metadata.name", "metadata.namespace", "spec.driver", "spec.nodeName"});
  field_selector selector;
  for (const std::string_view part : base::split(text, ",")) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view name = part.substr(0, equals);
    std::string_view value = part.substr(equals + 1);
    value.remove_prefix(value.starts_with('=') ? 1 : 0);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return std::nullopt;
    }
    selector[std::string(name)] = value;
  }
  return selector;
}

bool matches(const field_selector& selector, const json& object) {
  return std::all_of(selector.begin(), selector.end(), [&object](const auto& each) {
    return field_of(object, each.first) == each.second;
  });
}

const json& kube_state::store(const object_key& key, json object) {
  const auto before = objects.find(key);
  const bool is_new = before == objects.end();
  json& meta = object["metadata"];
  meta["name"] = key.name;
  if (!key.space.empty()) {
    meta["namespace"] = key.space;
  }
  if (is_new) {
    meta.emplace("uid", new_uid());
    meta["creationTimestamp"] = time_text();
    meta["generation"] = 1;
  } else {
    const json& old = before->second.at("metadata");
    meta["uid"] = old.at("uid");
    meta["creationTimestamp"] = old.at("creationTimestamp");
    const bool same = object.value("spec", json()) == before->second.value("spec", json());
    meta["generation"] = old.at("generation").get<std::int64_t>() + (same ? 0 : 1);
    meta["resourceVersion"] = old.at("resourceVersion");
    if (object == before->second) {
      return before->second;
    }
  }
  meta["resourceVersion"] = std::to_string(version + 1);
  json& stored = objects[key] = std::move(object);
  announce(is_new ? "ADDED" : "MODIFIED", key, stored);
  return stored;
}

void kube_state::drop(const object_key& key) {
  const auto matching = objects.find(key);
  json last = matching->second;
  last["metadata"]["resourceVersion"] = std::to_string(version + 1);
  objects.erase(matching);
  announce("DELETED", key, last);
}

void kube_state::announce(const char* type, const object_key& key, const json& object) {
  events.push_back({++version, type, key, object});
  while (events.size() > options.history) {
    expired = events.front().version;
    events.pop_front();
  }
  changed.notify_all();
}

void kube_state::expire_events() {
  events.clear();
  // An unannounced change, so that even the last version is too old.
  expired = ++version;
  changed.notify_all();
}

std::vector<json> kube_state::list(const object_path& path, const field_selector& selector) const {
  std::vector<json> matching;
  for (const auto& [key, object] : objects) {
    if (key.kind == path.kind && (path.space.empty() || key.space == path.space) &&
        matches(selector, object)) {
      matching.push_back(object);
    }
  }
  return matching;
}

}  // namespace gpushm::testing
