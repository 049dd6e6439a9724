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

#include "testing/fake_kube_api/fake_kube_api.hpp"
#include "testing/fake_kube_api/paths.hpp"

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
  nlohmann::json object;  ///< as stored; of a deletion: its last state
};

/// "a=b,c=d" of the fields that the server knows: metadata.name, metadata.namespace, spec.driver,
/// spec.nodeName.
using field_selector = std::map<std::string, std::string>;
/// Now, as objects have it: "2026-01-01T00:00:00Z".
[[nodiscard]] std::string time_text();
/// Nothing when it is not understood.
[[nodiscard]] std::optional<field_selector> parse_selector(const std::string& text);
[[nodiscard]] bool matches(const field_selector& selector, const nlohmann::json& object);

/// Everything that requests, watches and tests share; `mutex` guards all of it, `changed` announces
/// each change.
struct kube_state {
  explicit kube_state(fake_kube_options from) : options(std::move(from)) {}

  mutable std::mutex mutex;
  mutable std::condition_variable changed;

  fake_kube_options options;
  std::map<object_key, nlohmann::json> objects;
  std::uint64_t version = 100;  ///< of the last change
  std::uint64_t forgotten = 0;  ///< events up to this are not known any more
  std::deque<kube_event> events;

  std::size_t watches = 0;
  std::uint64_t watch_ends = 0;  ///< times that something was asked of all watches
  std::uint64_t watch_cuts = 0;
  std::uint64_t bookmarks = 0;
  bool stopping = false;

  std::deque<kube_failure> failures;
  std::vector<kube_request> requests;

  // Callers hold `mutex`.

  /// Creates or replaces; the server's part of the metadata is made here. Returns what was stored.
  const nlohmann::json& store(const object_key& key, nlohmann::json object);
  void drop(const object_key& key);
  /// Ordered by namespace and name.
  [[nodiscard]] std::vector<nlohmann::json> list(const object_path& of,
                                                 const field_selector& selector) const;
  void forget_events();

 private:
  void announce(const char* type, const object_key& key, const nlohmann::json& object);
};

}  // namespace gpushm::testing
