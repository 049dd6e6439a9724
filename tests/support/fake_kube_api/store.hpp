// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_kube_api/fake_kube_api.hpp"
#include "tests/support/fake_kube_api/paths.hpp"

namespace gpushm::testing {

struct object_key {
  const kube_kind* kind = nullptr;
  std::string space;
  std::string name;
  friend auto operator<=>(const object_key&, const object_key&) = default;
};

struct kube_event {
  std::uint64_t version = 0;
  std::string type;
  object_key key;
  nlohmann::json object;  ///< as stored; for a deletion, its last state
};

/// "a=b,c=d", of the supported fields: metadata.name, metadata.namespace, spec.driver,
/// spec.nodeName.
using field_selector = std::map<std::string, std::string>;
/// The current time in the format of objects: "2026-01-01T00:00:00Z".
[[nodiscard]] std::string time_text();
/// Nullopt if it is malformed or names an unsupported field.
[[nodiscard]] std::optional<field_selector> parse_selector(const std::string& text);
[[nodiscard]] bool matches(const field_selector& selector, const nlohmann::json& object);

/// State shared by requests, watches and tests. `mutex` guards all of it; `changed` is notified of
/// each change.
struct kube_state {
  explicit kube_state(fake_kube_options source) : options(std::move(source)) {}

  mutable std::mutex mutex;
  mutable std::condition_variable changed;

  fake_kube_options options;
  std::map<object_key, nlohmann::json> objects;
  std::uint64_t version = 100;  ///< of the last change
  std::uint64_t expired = 0;    ///< events up to this version are no longer kept
  std::deque<kube_event> events;

  std::size_t watches = 0;
  // Numbers of requests to all watches: to end, to be cut, to send a bookmark.
  std::uint64_t watch_ends = 0;
  std::uint64_t watch_cuts = 0;
  std::uint64_t bookmarks = 0;
  bool stopping = false;

  std::deque<kube_failure> failures;
  std::vector<kube_request> requests;

  // Precondition of each: `mutex` is locked.

  /// Creates or replaces an object and sets the server's metadata. Returns the stored object.
  const nlohmann::json& store(const object_key& key, nlohmann::json object);
  void drop(const object_key& key);
  /// Ordered by namespace and name.
  [[nodiscard]] std::vector<nlohmann::json> list(const object_path& path,
                                                 const field_selector& selector) const;
  void expire_events();

 private:
  void announce(const char* type, const object_key& key, const nlohmann::json& object);
};

}  // namespace gpushm::testing
