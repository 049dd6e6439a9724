// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arguments of `gpushm channel`'s commands, and the functions that run them, as in
// apps/gpushm/commands.hpp.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/gpushm/commands.hpp"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

struct channel_create_arguments {
  connection_arguments connection;
  std::string name;
  std::uint32_t slots = 4;
  std::optional<std::uint64_t> slot_bytes;
  std::string device = "auto";
  bool huge_pages = false;
};
[[nodiscard]] int run_channel_create(const channel_create_arguments& arguments);

struct channel_pub_arguments {
  connection_arguments connection;
  std::string name;
  std::optional<std::uint32_t> slots;  ///< unset: those of the channel, else the default
  std::optional<std::uint64_t> slot_bytes;
  std::string device = "auto";
  std::string from;  ///< a file, or "-"; empty: a pattern
  bool pattern = false;
  bool loop = false;
  std::optional<double> rate;  ///< items in a second
  std::optional<std::uint64_t> count;
  std::optional<std::uint32_t> consumers;     ///< to wait for
  std::chrono::milliseconds timeout{30'000};  ///< of the wait for `consumers`
  std::optional<std::uint64_t> corrupt;  ///< which of its items it damages, from 1 (tests only)
};
[[nodiscard]] int run_channel_pub(const channel_pub_arguments& arguments);

struct channel_sub_arguments {
  connection_arguments connection;
  std::string name;
  consumer_mode mode = consumer_mode::block;
  std::optional<std::uint32_t> held;
  std::string device;
  std::optional<std::uint64_t> count;
  std::string output;
  std::chrono::milliseconds delay{0};
  std::chrono::milliseconds timeout{30'000};  ///< of the wait for the channel
  std::chrono::milliseconds resume{0};        ///< how long to wait for a new producer
};
[[nodiscard]] int run_channel_sub(const channel_sub_arguments& arguments);

struct channel_stat_arguments {
  connection_arguments connection;
  std::string name;
};
[[nodiscard]] int run_channel_stat(const channel_stat_arguments& arguments);

}  // namespace gpushm::cli
