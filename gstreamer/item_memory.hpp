// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gst/gst.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "gpushm/channel.hpp"

namespace gpushm::gstreamer {

/// A consumer whose items become GstMemory. It leaves the channel when the element and the last
/// memory have released it.
///
/// Thread-safety: safe, except `next` and `memory_of`: one thread at a time.
class item_source : public std::enable_shared_from_this<item_source> {
 public:
  struct options {
    std::string channel;
    consumer_mode mode = consumer_mode::block;
    std::uint32_t held = 0;  ///< of `latest`
    bool copy = false;
    std::chrono::milliseconds timeout{0};
    std::chrono::milliseconds resume{0};  ///< as in `consumer_options`
  };

  /// Joins the channel, within the timeout for its name. Throws `error` as
  /// `channel_consumer::open`, and invalid_argument if the channel's memory is not the host's.
  [[nodiscard]] static std::shared_ptr<item_source> open(client client,
                                                         const options& options,
                                                         const std::stop_token& stop);

  /// As `channel_consumer::next`.
  [[nodiscard]] std::optional<channel_item> next(std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop);
  [[nodiscard]] bool has_ended() const noexcept { return consumer_.has_ended(); }

  /// The first `size` bytes of an item, which must not exceed the slot's. Without a copy: memory
  /// for reading only, which releases the item when it is freed, in any thread. With a copy, if
  /// this consumer would hold too many items otherwise: the item is released at once. Null if
  /// `size` is 0; the item is released, also if this throws.
  [[nodiscard]] GstMemory* memory_of(channel_item& item, std::uint64_t size);

  void release(channel_item& item) noexcept;

 private:
  item_source(client client, options options, const std::stop_token& stop);
  [[nodiscard]] bool try_hold(const channel_item& item, std::uint64_t size);

  options options_;
  client client_;
  channel_consumer consumer_;
  std::mutex mutex_;
  std::set<std::uint64_t> held_;  ///< numbers of items that are memory
  std::uint32_t slots_seen_ = 0;  ///< the channel has at least this number
};

}  // namespace gpushm::gstreamer
