// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/near_match.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "apps/gpushm/segment/describe.hpp"
#include "base/segments/names.hpp"
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

error with_near_match(const error& failure,
                      const connection_arguments& connection,
                      const std::string& name) {
  if (failure.code() != errc::no_such_segment) {
    return failure;
  }
  try {
    near_match nearest(name);
    for (const segment_info& each : segments_for_hint(connection.socket)) {
      // `name` itself may have been published since.
      if (each.published && each.name != name && internal_text(each.name).empty() &&
          !nearest.consider(each.name)) {
        break;
      }
    }
    if (!nearest.best().empty()) {
      return {failure.code(),
              failure.operation(),
              failure.object(),
              failure.cause(),
              fmt::format("did you mean \"{}\"?", nearest.best()),
              failure.details()};
    }
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): the hint is optional
  }
  return failure;
}

}  // namespace gpushm::cli
