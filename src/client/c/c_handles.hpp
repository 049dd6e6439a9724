// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string_view>
#include <vector>

#include "base/report/c_interface.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/segment/subscription_impl.hpp"
#include "client/timeline/timelines.hpp"

// Handles of gpushm.h; segments are in segment_impl.hpp.

struct gpushm_client {
  std::shared_ptr<gpushm::client_detail::timelines> timelines;
};
struct gpushm_subscription {
  gpushm::client_detail::subscription_impl impl;
};
struct gpushm_stop {
  std::stop_source source;
};
struct gpushm_segment_list {
  std::vector<gpushm::wire::segment> segments;
};

namespace gpushm::client_detail {

[[nodiscard]] inline std::stop_token token_of(const gpushm_stop* stop) {
  return stop == nullptr ? std::stop_token() : stop->source.get_token();
}

/// Throws `errc::invalid_argument` for null.
[[nodiscard]] inline const gpushm_segment& filled(const gpushm_segment* segment) {
  if (segment == nullptr) {
    throw error(errc::invalid_argument,
                "segment",
                {},
                "this segment object is empty",
                "open or create a segment first; a moved-from object is empty");
  }
  return *segment;
}

/// Checks before anything else that no lock is used in a forked child.
[[nodiscard]] inline timelines& usable_timelines(const gpushm_client* client,
                                                 std::string_view operation,
                                                 std::string_view object = {}) {
  if (client == nullptr) {
    throw error(errc::invalid_argument,
                "client",
                {},
                "this client object is empty",
                "connect first; a moved-from object is empty");
  }
  client->timelines->client().check_usable(operation, object);
  return *client->timelines;
}
[[nodiscard]] inline client_impl& usable(const gpushm_client* client,
                                         std::string_view operation,
                                         std::string_view object = {}) {
  return usable_timelines(client, operation, object).client();
}

/// Throws `errc::invalid_argument`.
[[nodiscard]] open_options open_options_from(const gpushm_open_options* given,
                                             std::int64_t timeout_ms);
/// Converts to the C structure.
[[nodiscard]] gpushm_device device_out(const device_id& device);

}  // namespace gpushm::client_detail
