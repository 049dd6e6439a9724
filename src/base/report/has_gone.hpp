// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/error.hpp"

namespace gpushm::base {

/// Whether a failed use of what another process has (a channel's producer, a loader's timeline)
/// reports that there is no such process, or that it has ended.
[[nodiscard]] inline bool has_gone(const error& why) {
  return why.code() == errc::no_such_segment || why.code() == errc::peer_died ||
         why.code() == errc::writer_ending || why.code() == errc::gone_or_replaced;
}

}  // namespace gpushm::base
