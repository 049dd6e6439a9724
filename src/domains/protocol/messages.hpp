// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/segments/device_loss.hpp"
#include "domains/protocol/reading.hpp"
#include "domains/protocol/segment_row.hpp"
#include "domains/protocol/statistics.hpp"
#include "domains/protocol/usage.hpp"
#include "gpushm/error.hpp"

/// Packets on the private socket of gpushm-brokerd, as FlatBuffers (messages.fbs). Pure functions;
/// they throw `std::bad_alloc`, and where noted `error`.
namespace gpushm::domains {

/// No packet is longer.
inline constexpr std::size_t max_message_bytes = 65'536;
/// The largest numbers of rows in one packet.
inline constexpr std::size_t max_readings = 32;
inline constexpr std::size_t max_usages = 80;
/// More would not fit beside `max_principals`; those that count most are sent.
inline constexpr std::size_t max_refusals = 200;

struct open_request {
  std::string domain;
};
struct close_request {
  std::string domain;
};
struct read_request {
  std::string after;  ///< domains whose names come after this one
};
/// From another broker that is to serve the same directory, to one whose keeper has ended: end.
struct yield_request {};
struct set_quotas_request {
  std::string text;
};
struct usage_request {
  std::string domain;
};
/// The memory that exists on a GPU is gone.
struct lose_device_request {
  base::lost_device device;
};
struct broker_request {};
struct statistics_request {
  std::string domain;
};
struct segments_request {
  std::string domain;
  std::uint32_t slot = 0;  ///< from this one on
};
struct remove_unheld_request {
  std::string domain;
  gpushm::generation generation = 0;
};
using request = std::variant<open_request,
                             close_request,
                             read_request,
                             set_quotas_request,
                             usage_request,
                             yield_request,
                             lose_device_request,
                             broker_request,
                             statistics_request,
                             segments_request,
                             remove_unheld_request>;

struct opened {
  std::string directory;
};
struct closed {};
struct readings {
  std::vector<reading> all;
  bool more = false;
};
struct yielded {};
struct quotas_set {};
struct device_lost {};
struct usages {
  std::vector<usage> all;
  std::string quotas;
};
struct segment_page {
  std::vector<segment_row> all;
  std::uint32_t next_slot = 0;
  bool more = false;  ///< there may be some from `next_slot` on
};
struct unheld_removed {
  bool is_removed = false;  ///< false: there is no such segment, or a process has it
};
using reply = std::variant<opened,
                           closed,
                           readings,
                           error,
                           quotas_set,
                           usages,
                           yielded,
                           device_lost,
                           broker_facts,
                           domain_statistics,
                           segment_page,
                           unheld_removed>;

/// Throws message_too_large.
[[nodiscard]] std::vector<std::byte> encode(const request& bytes);
[[nodiscard]] std::vector<std::byte> encode(const reply& bytes);
/// Throws protocol_error: not such a packet; unsupported_version: a kind of a later version.
[[nodiscard]] request decode_request(std::span<const std::byte> bytes);
[[nodiscard]] reply decode_reply(std::span<const std::byte> bytes);

}  // namespace gpushm::domains
