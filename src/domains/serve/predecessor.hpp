// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/recorder/takeover_state.hpp"

namespace gpushm::domains {

/// What the last gpushm-brokerd has left of each domain, by its short name in the keeper. What
/// cannot be continued is removed from `store`: first of all, the locks of sockets. Call once,
/// before threads exist. Blocks for seconds at most. Throws `error`: timed_out if the keeper does
/// not answer.
[[nodiscard]] std::map<std::string, succession::takeover_state> take_predecessor(
    keeper::descriptor_store& store);

}  // namespace gpushm::domains
