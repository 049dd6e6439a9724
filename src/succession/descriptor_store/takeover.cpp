// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/takeover.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

constexpr std::string_view operation = "take over";
constexpr std::string_view hello = "takeover 1";
constexpr std::string_view batch = "batch\n";
constexpr std::string_view kept = "kept";
constexpr std::string_view all = "all";
constexpr std::string_view ready = "ready";
constexpr std::string_view failed = "failed\n";
constexpr std::string_view refused = "refused\n";
/// A successor sends its hello at once.
constexpr milliseconds hello_timeout{1'000};
/// Names are shorter than 256 bytes (systemd's limit), and there are 253 in a batch at most.
constexpr std::size_t max_message_bytes = 65'536;

[[noreturn]] void give_up(const std::string& cause) {
  throw error(errc::broker_unreachable,
              operation,
              {},
              cause,
              "the previous keeper continues; its log and this one's have the reason");
}

void send(int socket, std::string_view text, std::span<const int> descriptors) {
  if (transport::send_packet(socket, std::as_bytes(std::span(text)), descriptors) !=
      transport::send_result::sent) {
    give_up("the other keeper is gone, or does not read");
  }
}

struct message {
  std::string text;
  std::vector<base::unique_fd> descriptors;
};

/// Throws `error` if none arrives, also at the end of the connection.
message receive(int socket, clock::time_point deadline) {
  std::vector<std::byte> buffer(max_message_bytes);
  for (;;) {
    transport::received got = transport::receive_packet(socket, buffer);
    switch (got.status) {
      case transport::receive_status::packet: {
        message result;
        result.text.resize(got.packet.size());
        std::transform(got.packet.begin(), got.packet.end(), result.text.begin(), [](auto each) {
          return static_cast<char>(each);
        });
        result.descriptors = std::move(got.descriptors);
        return result;
      }
      case transport::receive_status::would_block:
        if (!transport::wait_readable(socket, base::time_left(deadline)) &&
            base::time_left(deadline).count() == 0) {
          give_up("the other keeper does not answer");
        }
        break;
      case transport::receive_status::descriptors_lost:
        throw error(errc::too_many_descriptors,
                    operation,
                    {},
                    "this process has no room for the descriptors of the previous keeper",
                    "raise the open file limit (ulimit -n, LimitNOFILE)");
      case transport::receive_status::closed:
        give_up("the other keeper has closed the connection");
      case transport::receive_status::truncated:
        give_up("a message is too long");
    }
  }
}

/// Returns the names in a batch's text, after its first line.
std::vector<std::string> names_in(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1)) {
    result.emplace_back(text.substr(0, end));
  }
  return result;
}

}  // namespace

std::optional<taken_over> take_over(const std::string& path, milliseconds timeout) {
  const auto deadline = base::deadline_after(timeout);
  taken_over result;
  try {
    result.predecessor = transport::connect_packet_socket(path, timeout);
    send(result.predecessor.get(), hello, {});
  } catch (const error& why) {
    if (why.code() == errc::broker_unreachable) {
      return std::nullopt;
    }
    throw;
  }
  const int socket = result.predecessor.get();
  if (transport::wait_readable(socket, base::time_left(deadline)) &&
      transport::peek_bytes(socket, {}).status == transport::receive_status::closed) {
    return std::nullopt;
  }
  for (;;) {
    message got = receive(socket, deadline);
    if (got.text == all && got.descriptors.size() == 3) {
      result.lock = std::move(got.descriptors[0]);
      result.listener = std::move(got.descriptors[1]);
      result.life = std::move(got.descriptors[2]);
      return result;
    }
    if (got.text.starts_with(refused)) {
      throw error(errc::broker_unreachable,
                  operation,
                  {},
                  "the previous keeper refuses: " + got.text.substr(refused.size()),
                  "it continues to serve; see the log of the keeper that has failed, then start "
                  "this one again");
    }
    std::vector<std::string> names;
    if (got.text.starts_with(batch)) {
      names = names_in(std::string_view(got.text).substr(batch.size()));
    }
    if (names.empty() || names.size() != got.descriptors.size()) {
      give_up("the other keeper sends messages of another version");
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      // The program inherits them.
      ::fcntl(got.descriptors[i].get(), F_SETFD, 0);
      result.descriptors.push_back({std::move(names[i]), std::move(got.descriptors[i])});
    }
    send(socket, kept, {});
  }
}

bool report_ready(int predecessor) noexcept {
  try {
    send(predecessor, ready, {});
    return true;
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    return false;
  }
}

void report_failure(int predecessor, const std::string& reason) noexcept {
  try {
    send(predecessor, std::string(failed) + reason, {});
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

bool has_predecessor_ended(int predecessor) noexcept {
  try {
    return transport::peek_bytes(predecessor, {}).status == transport::receive_status::closed;
  } catch (const std::exception&) {
    return true;
  }
}

void refuse(int successor, const std::string& reason) noexcept {
  try {
    send(successor, std::string(refused) + reason, {});
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

base::guarded_fd accept_successor(const transport::listener& listener) {
  auto connection = base::guarded_fd::open([&] {
    return base::retry([&] {
      return ::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
  });
  if (!connection) {
    return {};
  }
  try {
    const auto peer = transport::peer_of(connection.get());
    if (!peer.uid_known || peer.uid != ::geteuid()) {
      base::log(log_level::warning,
                "a process of another uid (" + std::to_string(peer.uid) + ") asks for a takeover");
      return {};
    }
    if (receive(connection.get(), base::deadline_after(hello_timeout)).text != hello) {
      give_up("a message of another version");
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    return {};
  }
  return connection;
}

void hand_over(int successor,
               const std::vector<stored_descriptor>& everything,
               const transport::listener& listener,
               milliseconds timeout,
               const std::function<void(base::unique_fd life)>& before_all) {
  const auto deadline = base::deadline_after(timeout);
  for (auto next = everything.begin(); next != everything.end();) {
    std::string text(batch);
    std::vector<int> numbers;
    for (; next != everything.end() && numbers.size() < wire::max_batch; ++next) {
      text += next->name;
      text += '\n';
      numbers.push_back(next->number);
    }
    send(successor, text, numbers);
    if (receive(successor, deadline).text != kept) {
      give_up("the other keeper sends messages of another version");
    }
  }
  std::array<int, 2> pipe{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(pipe.data(), O_CLOEXEC); });
  base::unique_fd life(pipe[0]);
  const base::unique_fd write_end(pipe[1]);
  before_all(std::move(life));
  const std::array<int, 3> rest{listener.lock_descriptor(), listener.descriptor(), write_end.get()};
  send(successor, all, rest);
}

successor_state state_of(int successor) noexcept {
  std::array<std::byte, ready.size() + 1> buffer{};
  try {
    const auto got = transport::peek_bytes(successor, buffer);
    if (got.status == transport::receive_status::would_block) {
      return successor_state::starting;
    }
    const bool is_ready = got.status == transport::receive_status::packet &&
                          std::ranges::equal(got.packet, std::as_bytes(std::span(ready)));
    return is_ready ? successor_state::ready : successor_state::failed;
  } catch (const std::exception&) {
    return successor_state::failed;
  }
}

std::string failure_of(int successor) noexcept {
  try {
    const message got = receive(successor, clock::now());
    return got.text.starts_with(failed) ? base::printable(got.text.substr(failed.size())) : "";
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace gpushm::keeper
