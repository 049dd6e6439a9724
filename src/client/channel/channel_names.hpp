// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/report/has_gone.hpp"
#include "base/segments/names.hpp"
#include "gpushm/channel.h"
#include "gpushm/error.hpp"

/// The segments of the channel NAME: NAME itself (the slots), and those below.
namespace gpushm::client_detail::channel_names {

/// The producer's timelines. The process that has this name is the producer.
[[nodiscard]] inline std::string producer(std::string_view channel) {
  return std::string(channel) + "/~producer";
}
/// Prefix of the names of the producers' pages.
[[nodiscard]] inline std::string pages(std::string_view channel) {
  return std::string(channel) + "/~page-";
}
/// Prefix of the names of the consumers' timelines.
[[nodiscard]] inline std::string consumers(std::string_view channel) {
  return std::string(channel) + "/~consumer-";
}
/// Returns `why` in the user's terms: it names the channel, not one of its segments.
[[nodiscard]] inline error in_terms_of(std::string_view channel, const error& why) {
  const std::string object = why.object();
  if (object == producer(channel) && why.code() == errc::already_exists) {
    return {why.code(),
            why.operation(),
            channel,
            "the channel has a producer",
            "stop that one first: gpushm channel stat shows its process",
            why.details()};
  }
  if (object == producer(channel) && base::has_gone(why) && why.code() != errc::writer_ending) {
    return {why.code(),
            why.operation(),
            channel,
            "the channel has no producer",
            "start its producer, or wait longer for it (gpushm ls shows which channels there are)",
            why.details()};
  }
  // "NAME/~producer" is "NAME", also in lists of names that are similar.
  const auto named = [](std::string text) {
    for (std::size_t at = 0; (at = text.find("/~", at)) != std::string::npos;) {
      const std::size_t end = text.find_first_of("\"' ,;:)", at);
      text.erase(at, end == std::string::npos ? end : end - at);
    }
    return text;
  };
  return {why.code(),
          why.operation(),
          named(object),
          named(why.cause()),
          named(why.next_step()),
          why.details()};
}
/// Throws invalid_argument.
inline void check(std::string_view operation, std::string_view channel) {
  base::check_name(operation, channel);
  if (channel.size() > GPUSHM_MAX_CHANNEL_NAME_BYTES) {
    throw error(errc::invalid_argument,
                operation,
                channel,
                "the channel's name has " + std::to_string(channel.size()) + " bytes",
                "at most " + std::to_string(GPUSHM_MAX_CHANNEL_NAME_BYTES) + " are allowed");
  }
}

}  // namespace gpushm::client_detail::channel_names
