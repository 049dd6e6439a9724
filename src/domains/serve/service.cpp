// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/service.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/process/thread.hpp"
#include "base/report/log.hpp"
#include "domains/protocol/private_socket.hpp"
#include "domains/serve/run_directory.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"

namespace gpushm::domains {

namespace {

using std::chrono::milliseconds;

/// Requests that are carried out at the same time.
constexpr int max_concurrent = 8;
/// For a client to send its request, and to read the reply.
constexpr milliseconds client_timeout{1'000};
constexpr milliseconds pause_without_resources{10};

transport::listener listen(const std::string& run_dir, std::optional<gid_t> group) {
  const std::string directory = private_directory(run_dir);
  create_directory(directory, 0750);
  if (group) {
    base::checked("serve", directory, "chown", [&] {
      return ::chown(directory.c_str(), static_cast<uid_t>(-1), *group);
    });
  }
  return {private_socket_path(run_dir), 0660, group};
}

}  // namespace

service::service(domain_set& domains,
                 const std::string& run_dir,
                 std::optional<gid_t> group,
                 orphan_rules rules)
    : domains_(domains),
      rules_(std::move(rules)),
      listener_(listen(run_dir, group)),
      stop_(base::guarded_fd::open([] {
        return base::checked("serve", {}, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC); });
      })) {
  try {
    for (int i = 0; i < max_concurrent; ++i) {
      threads_.push_back(base::start_thread("gpushm-domains", [this] { serve(); }));
    }
  } catch (...) {  // no further thread: those that run are joined
    stop_threads();
    throw;
  }
}

service::~service() {
  stop_threads();
}

void service::stop_threads() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(stop_.get(), &one, sizeof one));
}

void service::serve() {
  for (;;) {
    std::array<pollfd, 2> waits{{{listener_.descriptor(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (base::retry([&] { return ::poll(waits.data(), waits.size(), -1); }) < 0 ||
        waits[1].revents != 0) {
      return;
    }
    try {
      const auto connection = base::guarded_fd::open([&] {
        return base::checked(
            "serve",
            {},
            "accept4",
            [&] {
              return ::accept4(
                  listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            },
            {EAGAIN, ECONNABORTED});
      });
      if (connection) {  // otherwise another thread was faster
        reply_to_one(connection.get());
      }
    } catch (const std::exception& why) {
      base::log(log_level::warning, why.what());
      base::pause_before_retry(pause_without_resources);
    }
  }
}

void service::reply_to_one(int socket) {
  const auto deadline = base::deadline_after(client_timeout);
  std::vector<std::byte> buffer(max_message_bytes);
  transport::received got;
  do {
    got = transport::receive_packet(socket, buffer);
  } while (got.status == transport::receive_status::would_block &&
           transport::wait_readable(socket, base::time_left(deadline)));
  if (got.status != transport::receive_status::packet) {
    return;
  }
  std::vector<std::byte> packet;
  bool ends = false;
  try {
    const reply result = carry_out(decode_request(got.packet), socket);
    ends = std::holds_alternative<yielded>(result);
    packet = encode(result);
  } catch (const error& why) {
    packet = encode(reply(why));
  }
  // One packet always fits into the buffer of a new connection.
  static_cast<void>(transport::send_packet(socket, packet, {}));
  if (ends) {
    base::log(log_level::error,
              "the keeper of this process has ended, and another one has started a broker for this "
              "directory: this one ends, and members hand back to the next one what they have");
    rules_.end();
  }
}

/// Throws if this process serves for good reason.
void service::check_yield(int socket) const {
  constexpr const char* operation = "end this broker";
  const transport::peer_credentials peer = transport::peer_of(socket);
  if (!peer.uid_known || peer.uid != ::geteuid()) {
    throw error(errc::permission_denied,
                operation,
                {},
                "only another broker of the same uid may ask for that",
                "start brokers of a run directory with the same uid");
  }
  if (!rules_.has_no_keeper()) {
    throw error(errc::address_in_use,
                operation,
                {},
                "its keeper has not ended",
                "stop it, or let its keeper take over");
  }
}

reply service::carry_out(const request& request, int socket) {
  if (std::holds_alternative<yield_request>(request)) {
    check_yield(socket);
    return yielded{};
  }
  if (const auto* const open = std::get_if<open_request>(&request)) {
    return opened{domains_.open(open->domain)};
  }
  if (const auto* const close = std::get_if<close_request>(&request)) {
    domains_.close(close->domain);
    return closed{};
  }
  if (const auto* const set = std::get_if<set_quotas_request>(&request)) {
    domains_.set_quotas(set->text);
    return quotas_set{};
  }
  if (const auto* const read = std::get_if<usage_request>(&request)) {
    return domains_.read_usage(read->domain);
  }
  if (const auto* const lost = std::get_if<lose_device_request>(&request)) {
    domains_.lose_device(lost->device);
    return device_lost{};
  }
  if (std::holds_alternative<broker_request>(request)) {
    return domains_.read_broker();
  }
  if (const auto* const read = std::get_if<statistics_request>(&request)) {
    return domains_.read_statistics(read->domain);
  }
  if (const auto* const list = std::get_if<segments_request>(&request)) {
    return domains_.list_segments(list->domain, list->slot);
  }
  if (const auto* const remove = std::get_if<remove_unheld_request>(&request)) {
    return unheld_removed{domains_.remove_unheld(remove->domain, remove->generation)};
  }
  readings page;
  const std::string& after = std::get<read_request>(request).after;
  for (reading& each : domains_.read()) {
    if (each.domain <= after) {
      continue;
    }
    if (page.all.size() == max_readings) {
      page.more = true;
      break;
    }
    page.all.push_back(std::move(each));
  }
  return page;
}

}  // namespace gpushm::domains
