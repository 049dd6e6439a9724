// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/near_match.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "apps/gpushm/segment/describe.hpp"
#include "base/segments/names.hpp"
#include "base/segments/versioned_names.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

near_match::near_match(std::string_view name)
    : wanted_(name), best_distance_(std::clamp<std::size_t>(wanted_.size() / 3, 1, 3) + 1) {}

bool near_match::consider(std::string_view candidate) {
  const std::size_t distance = base::edit_distance(wanted_, candidate, best_distance_ - 1);
  if (distance < best_distance_) {
    best_distance_ = distance;
    best_ = candidate;
  }
  return --left_ > 0 && best_distance_ > 1;
}

std::vector<segment_info> segments_for_hint(const std::string& socket) {
  connect_options options;
  options.socket_path = socket;
  options.request_limit = std::chrono::milliseconds(500);
  return client::connect(options).list();
}

namespace {

/// "w/x" of "w/x@7/rank0" and of "w/x".
std::string_view base_of(std::string_view name) {
  return name.substr(0, name.find('@'));
}

/// What helps if `name` has versions, or is one of them; empty: what the broker says. The nearest
/// name would often be another version, which is not meant. Returns nullopt for other names.
std::optional<std::string> hint_for_versions(const std::vector<segment_info>& segments,
                                             const std::string& name) {
  bool has_versions = false;
  const std::string_view selector = std::string_view(name).substr(base_of(name).size());
  for (const segment_info& each : segments) {
    if (!each.published || !base::is_versioned_name(each.name) ||
        base_of(each.name) != base_of(name)) {
      continue;
    }
    has_versions = true;
    const std::string_view other = std::string_view(each.name).substr(base_of(name).size());
    const std::size_t part = std::min(other.find('/'), other.size());
    if (part != other.size() && (selector == other.substr(0, part) || selector == "@latest")) {
      return fmt::format(
          "a version of several parts is not a segment: name a part, such as \"{}{}\"",
          name,
          other.substr(part));
    }
  }
  return has_versions ? std::optional(std::string()) : std::nullopt;
}

std::string hint_for(const connection_arguments& connection, const std::string& name) {
  const std::vector<segment_info> segments = segments_for_hint(connection.socket);
  if (auto hint = hint_for_versions(segments, name)) {
    return *std::move(hint);
  }
  const std::string selector = name.substr(base_of(name).size());
  near_match nearest(selector.empty() ? std::string_view(name) : base_of(name));
  for (const segment_info& each : segments) {
    // `name` itself may have been published since.
    if (!each.published || each.name == name || !internal_text(each.name).empty() ||
        (!selector.empty() && !base::is_versioned_name(each.name))) {
      continue;
    }
    if (!nearest.consider(selector.empty() ? std::string_view(each.name) : base_of(each.name))) {
      break;
    }
  }
  return nearest.best().empty() ? std::string()
                                : fmt::format("did you mean \"{}{}\"?", nearest.best(), selector);
}

}  // namespace

error with_near_match(const error& failure,
                      const connection_arguments& connection,
                      const std::string& name) {
  if (failure.code() != errc::no_such_segment) {
    return failure;
  }
  try {
    if (const std::string hint = hint_for(connection, name); !hint.empty()) {
      return {failure.code(),
              failure.operation(),
              failure.object(),
              failure.cause(),
              hint,
              failure.details()};
    }
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): the hint is optional
  }
  return failure;
}

}  // namespace gpushm::cli
