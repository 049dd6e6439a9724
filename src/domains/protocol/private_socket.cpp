// SPDX-License-Identifier: Apache-2.0
#include "domains/protocol/private_socket.hpp"

#include <optional>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"

namespace gpushm::domains {

namespace {

using base::time_left;
using std::chrono::milliseconds;
using time_point = std::chrono::steady_clock::time_point;

constexpr std::string_view operation = "ask gpushm-brokerd";
/// Between connections, while it is not there. No event reports that it is.
constexpr milliseconds connect_poll{20};

/// Returns nullopt if the broker ended before it replied.
std::optional<reply> try_once(const std::string& path,
                              const std::vector<std::byte>& packet,
                              time_point deadline) {
  const auto socket = transport::connect_packet_socket(path, time_left(deadline));
  if (transport::send_packet(socket.get(), packet, {}) != transport::send_result::sent) {
    return std::nullopt;
  }
  std::vector<std::byte> buffer(max_message_bytes);
  for (;;) {
    const transport::received got = transport::receive_packet(socket.get(), buffer);
    switch (got.status) {
      case transport::receive_status::packet:
        return decode_reply(got.packet);
      case transport::receive_status::would_block:
        if (!transport::wait_readable(socket.get(), time_left(deadline)) &&
            time_left(deadline).count() == 0) {
          throw error(errc::timed_out,
                      operation,
                      path,
                      "it does not reply",
                      "check whether it is stopped or overloaded");
        }
        break;
      case transport::receive_status::closed:
        return std::nullopt;
      case transport::receive_status::truncated:
      case transport::receive_status::descriptors_lost:
        throw error(errc::protocol_error,
                    operation,
                    path,
                    "a reply is too long",
                    "check that gpushm-brokerd listens there");
    }
  }
}

/// As `try_once`; returns nullopt also if there is no broker.
std::optional<reply> try_to_ask(const std::string& path,
                                const std::vector<std::byte>& packet,
                                time_point deadline) {
  try {
    return try_once(path, packet, deadline);
  } catch (const error& why) {
    if (why.code() != errc::broker_unreachable) {
      throw why.in(operation, path);
    }
    if (time_left(deadline) <= connect_poll) {
      throw error(errc::broker_unreachable,
                  operation,
                  path,
                  why.cause(),
                  "check that gpushm-brokerd runs, with this run directory");
    }
    return std::nullopt;
  }
}

}  // namespace

std::string private_directory(const std::string& run_dir) {
  return run_dir + "/private";
}

std::string private_socket_path(const std::string& run_dir) {
  return private_directory(run_dir) + "/socket";
}

template <typename Reply>
Reply private_socket::ask(const request& request, time_point deadline) const {
  const auto packet = encode(request);
  for (;;) {
    if (auto got = try_to_ask(path_, packet, deadline)) {
      if (auto* const failure = std::get_if<error>(&*got)) {
        throw error(*failure);
      }
      if (auto* const result = std::get_if<Reply>(&*got)) {
        return std::move(*result);
      }
      throw error(errc::protocol_error,
                  operation,
                  path_,
                  "the reply is not of the requested kind",
                  "check that gpushm-brokerd listens there");
    }
    if (time_left(deadline) <= connect_poll) {
      throw error(errc::broker_unreachable,
                  operation,
                  path_,
                  "it ends before it replies",
                  "see the log of gpushm-brokerd");
    }
    base::pause_before_retry(connect_poll);
  }
}

std::string private_socket::open(const std::string& domain, milliseconds timeout) const {
  return ask<opened>(open_request{domain}, base::deadline_after(timeout)).directory;
}

void private_socket::close(const std::string& domain, milliseconds timeout) const {
  static_cast<void>(ask<closed>(close_request{domain}, base::deadline_after(timeout)));
}

void private_socket::yield(milliseconds timeout) const {
  static_cast<void>(ask<yielded>(yield_request{}, base::deadline_after(timeout)));
}

std::vector<reading> private_socket::read(milliseconds timeout) const {
  const auto deadline = base::deadline_after(timeout);
  std::vector<reading> result;
  std::string after;
  for (bool more = true; more;) {
    auto page = ask<readings>(read_request{after}, deadline);
    more = page.more && !page.all.empty() && page.all.back().domain > after;
    if (!page.all.empty()) {
      after = page.all.back().domain;
    }
    result.insert(result.end(),
                  std::make_move_iterator(page.all.begin()),
                  std::make_move_iterator(page.all.end()));
  }
  return result;
}

void private_socket::set_quotas(const std::string& text, milliseconds timeout) const {
  static_cast<void>(ask<quotas_set>(set_quotas_request{text}, base::deadline_after(timeout)));
}

usages private_socket::read_usage(const std::string& domain, milliseconds timeout) const {
  return ask<usages>(usage_request{domain}, base::deadline_after(timeout));
}

broker_facts private_socket::read_broker(milliseconds timeout) const {
  return ask<broker_facts>(broker_request{}, base::deadline_after(timeout));
}

domain_statistics private_socket::read_statistics(const std::string& domain,
                                                  milliseconds timeout) const {
  return ask<domain_statistics>(statistics_request{domain}, base::deadline_after(timeout));
}

std::vector<segment_row> private_socket::list_segments(const std::string& domain,
                                                       milliseconds timeout) const {
  const auto deadline = base::deadline_after(timeout);
  std::vector<segment_row> result;
  segment_page page;
  do {
    const std::uint32_t from = page.next_slot;
    page = ask<segment_page>(segments_request{domain, from}, deadline);
    result.insert(result.end(),
                  std::make_move_iterator(page.all.begin()),
                  std::make_move_iterator(page.all.end()));
    page.more = page.more && page.next_slot > from;
  } while (page.more);
  return result;
}

bool private_socket::remove_unheld(const std::string& domain,
                                   gpushm::generation generation,
                                   milliseconds timeout) const {
  return ask<unheld_removed>(remove_unheld_request{domain, generation},
                             base::deadline_after(timeout))
      .is_removed;
}

void private_socket::lose_device(const base::lost_device& device, milliseconds timeout) const {
  static_cast<void>(ask<device_lost>(lose_device_request{device}, base::deadline_after(timeout)));
}

pid_t private_socket::listening_process(milliseconds timeout) const {
  return transport::peer_of(transport::connect_packet_socket(path_, timeout).get()).pid;
}

}  // namespace gpushm::domains
