// SPDX-License-Identifier: Apache-2.0
#include "client/session/handshake.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/process/process.hpp"
#include "base/report/log.hpp"
#include "client/session/fence_proof.hpp"
#include "client/session/reply.hpp"
#include "client/session/request_lane.hpp"
#include "client/session/subject.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/packet_buffer.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm::client_detail {

namespace {

using base::time_left;
using std::chrono::milliseconds;

/// Interval between connections to a broker that closes them. No event reports its successor.
constexpr milliseconds replacement_poll{10};
/// The same for a broker that refuses them, because its keeper does not read.
constexpr milliseconds keeper_poll{50};

/// Returns false if the kernel accepts no more descriptors now.
bool try_send_hello(int socket,
                    std::span<const std::byte> hello,
                    std::span<const int> descriptors,
                    const subject& about,
                    steady_time deadline) {
  try {
    if (transport::send_packet(socket, hello, descriptors) == transport::send_result::closed) {
      // The broker may have sent a reason before it closed, which is read next.
      base::log(log_level::debug, "the broker closed the connection before the hello");
    }
    return true;
  } catch (const error& why) {
    if (why.code() != errc::too_many_descriptors || std::chrono::steady_clock::now() >= deadline) {
      throw why.in(about.operation, about.object);
    }
    return false;
  }
}

/// Sends the hello, with the descriptors of the fence.
void send_hello(int socket,
                const wire::session_token& resume,
                const subject& about,
                steady_time deadline) {
  const fence_proof proof;
  const auto self = base::this_process();
  const auto hello = wire::encode({0,
                                   wire::hello{wire::protocol_version,
                                               self.boot_id,
                                               self.pid_namespace,
                                               self.pid,
                                               proof.kind(),
                                               resume,
                                               wire::known_kinds,
                                               true,
                                               true}});
  while (!try_send_hello(socket, hello, proof.descriptors(), about, deadline)) {
    base::pause_before_retry(inflight_poll);
  }
}

/// As `shake_hands`, once; nullopt if the broker closed the connection without a reply, or with
/// the one that is then in `behind`: it can accept connections again later.
std::optional<handshake> try_handshake(const subject& about,
                                       const std::string& path,
                                       steady_time deadline,
                                       const wire::session_token& resume,
                                       std::span<const std::byte> request,
                                       std::optional<error>& behind) {
  handshake done;
  done.requests = transport::connect_packet_socket(path, time_left(deadline));
  const int socket = done.requests.get();
  send_hello(socket, resume, about, deadline);
  done.has_sent_request = !request.empty() && transport::send_packet(socket, request, {}) ==
                                                  transport::send_result::sent;
  if (!transport::wait_readable(socket, time_left(deadline))) {
    throw error(errc::timed_out,
                about.operation,
                about.object,
                "the broker does not answer",
                "check whether it is stopped or overloaded, or use a longer timeout");
  }
  const wire::packet_buffer buffer;
  received_packet got = receive_one(socket, buffer.bytes());
  if (got.what == received_packet::kind::malformed) {
    throw unexpected_reply(about);
  }
  if (!got.one) {
    return std::nullopt;
  }
  if (got.one->descriptors_lost) {
    throw error(errc::too_many_descriptors,
                about.operation,
                about.object,
                "this process has no descriptors left for the broker's state table and event lane",
                "raise its open file limit (ulimit -n)");
  }
  if (const auto* failure = std::get_if<wire::failure>(&got.one->message.body)) {
    if (failure->code != errc::timed_out) {
      throw from_wire(*failure, about);
    }
    behind = from_wire(*failure, about);
    return std::nullopt;
  }
  auto* const welcome = std::get_if<wire::welcome>(&got.one->message.body);
  if (welcome == nullptr) {
    throw unexpected_reply(about);
  }
  if (welcome->version != wire::protocol_version) {
    throw error(errc::unsupported_version,
                about.operation,
                about.object,
                "the broker uses protocol version " + std::to_string(welcome->version) +
                    ", this client version " + std::to_string(wire::protocol_version),
                "update whichever is older");
  }
  if (got.one->descriptors.size() != 2) {
    throw unexpected_reply(about);
  }
  const int table_file = got.one->descriptors[0].get();
  done.events = std::move(got.one->descriptors[1]);
  done.info = {path,
               welcome->domain,
               welcome->epoch,
               welcome->version,
               transport::peer_of(socket).pid,
               welcome->max_segments,
               welcome->quota_bytes,
               welcome->fence,
               milliseconds(welcome->fence_delay_ms)};

  done.table = map_table(table_file, about);
  done.view =
      wire::state_table_view(done.table.get().address, done.table.get().size_bytes, welcome->epoch);
  if (!done.view) {
    throw unexpected_reply(about);
  }
  done.welcome = std::move(*welcome);
  return done;
}

}  // namespace

base::unique_mapping map_table(int file, const subject& about) {
  struct stat table {};
  base::checked(about.operation, about.object, "fstat", [&] { return ::fstat(file, &table); });
  const auto size = static_cast<std::size_t>(table.st_size);
  // Reading a table that could shrink might raise SIGBUS.
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals == -1 || (seals & F_SEAL_SHRINK) == 0 || size < wire::state_table_words_offset) {
    throw unexpected_reply(about);
  }
  return base::map_file(about.operation, file, size, false);
}

handshake shake_hands(const std::string& path,
                      milliseconds timeout,
                      const wire::session_token& resume,
                      std::span<const std::byte> request) {
  const auto deadline = base::deadline_after(timeout);
  const subject about{"connect", path};
  const auto closed = [&] {
    return error(errc::broker_unreachable,
                 about.operation,
                 about.object,
                 "the broker closed the connection immediately",
                 "see the broker's log");
  };
  std::optional<steady_time> replaced;  // by then, since the first time that it closed
  for (;;) {
    std::optional<error> behind;
    try {
      if (auto done = try_handshake(about, path, deadline, resume, request, behind)) {
        return std::move(*done);
      }
    } catch (const error& why) {
      if (!replaced || why.code() != errc::timed_out) {
        throw;
      }
      throw closed();  // the last of several attempts only had less time
    }
    if (behind) {
      if (time_left(deadline) <= keeper_poll) {
        throw error(*behind);
      }
      base::pause_before_retry(keeper_poll);
      continue;
    }
    // A broker that is killed loses a connection that it has accepted and not yet recorded.
    if (!replaced) {
      replaced = std::min(deadline, base::deadline_after(wire::longest_pause));
    }
    if (time_left(*replaced) <= replacement_poll) {
      throw closed();
    }
    base::pause_before_retry(replacement_poll);
  }
}

}  // namespace gpushm::client_detail
