// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "client/timeline/timelines.hpp"
#include "gpushm/channel.h"

namespace gpushm::client_detail {

/// A channel, as a process sees it that has not joined it.
struct channel_status {
  gpushm_channel_info info{};
  std::vector<gpushm_channel_consumer_info> consumers;
};

/// See gpushm_channel_status_read.
[[nodiscard]] channel_status read_channel_status(timelines& timelines, std::string_view name);

}  // namespace gpushm::client_detail
