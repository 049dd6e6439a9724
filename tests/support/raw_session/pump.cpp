// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/pump.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>

#include "base/files/syscall.hpp"
#include "protocol/transport/address.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace gpushm_testing {
namespace {

namespace transport = gpushm::transport;
namespace wire = gpushm::wire;
using gpushm::base::retry;
using gpushm::base::unique_fd;
using transport::receive_status;
using transport::send_result;

constexpr auto idle_pause = std::chrono::microseconds(200);
constexpr int burst = 8;

/// Nullopt when the broker does not accept connections now.
std::optional<raw_session> dial(const std::string& socket_path) {
  try {
    return raw_session::greeted(socket_path);
  } catch (const gpushm::error&) {
    return std::nullopt;
  } catch (const harness_error&) {
    return std::nullopt;
  }
}

class pumping {
 public:
  pumping(const std::string& socket_path, const pump_options& options)
      : socket_path_(socket_path),
        options_(options),
        null_(gpushm::base::checked(
            "pump", "/dev/null", "open", [] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); })),
        descriptors_(options.descriptors, null_.get()),
        buffer_(wire::max_packet_bytes),
        lines_(options.connections) {}

  pump_counts run(clock::time_point until) {
    while (clock::now() < until) {
      bool idle = true;
      for (auto& each : lines_) {
        idle = !step(each) && idle;
      }
      if (idle) {
        sleep_for(idle_pause);
      }
    }
    return counts_;
  }

 private:
  struct line {
    std::optional<raw_session> session;
    std::uint64_t sent = 0;
  };

  /// Returns false if there is nothing to do for this connection now.
  bool step(line& line) {
    if (!line.session) {
      line.session = dial(socket_path_);
      counts_.connections += line.session ? 1U : 0U;
      return line.session.has_value();
    }
    bool busy = false;
    for (int i = 0; i < burst && line.sent < options_.packets_each; ++i) {
      const auto result = options_.on_event_lane
                              ? line.session->try_send_event(options_.packet)
                              : line.session->try_send(options_.packet, descriptors_);
      if (result == send_result::closed) {
        line.session.reset();
        return true;
      }
      if (result == send_result::would_block) {
        break;
      }
      ++line.sent;
      ++counts_.sent;
      busy = true;
    }
    return (options_.reads && read_all(line)) || busy;
  }

  bool read_all(line& line) {
    bool busy = false;
    for (const int socket : {line.session->socket(), line.session->events()}) {
      while (true) {
        const auto got = transport::receive_packet(socket, buffer_);
        if (got.status == receive_status::would_block) {
          break;
        }
        if (got.status == receive_status::closed) {
          line.session.reset();
          return true;
        }
        ++counts_.replies;
        busy = true;
      }
    }
    return busy;
  }

  std::string socket_path_;
  pump_options options_;
  unique_fd null_;
  std::vector<int> descriptors_;
  std::vector<std::byte> buffer_;
  std::vector<line> lines_;
  pump_counts counts_;
};

}  // namespace

pump_counts pump(const std::string& socket_path,
                 const pump_options& options,
                 clock::time_point until) {
  return pumping(socket_path, options).run(until);
}

std::uint64_t connect_storm(const std::string& socket_path,
                            storm_kind kind,
                            clock::time_point until) {
  const auto address = transport::unix_address("storm", socket_path);
  std::vector<std::byte> packet;
  if (kind == storm_kind::hello) {
    packet = wire::encode({0, wire::hello{}});
  } else if (kind == storm_kind::garbage) {
    packet.assign(8, std::byte{'g'});
  }
  std::uint64_t created = 0;
  while (clock::now() < until) {
    const unique_fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (retry([&] {
          return ::connect(
              socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
        }) != 0) {
      sleep_for(idle_pause);
      continue;
    }
    ++created;
    if (!packet.empty()) {
      ::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
    }
  }
  return created;
}

}  // namespace gpushm_testing
