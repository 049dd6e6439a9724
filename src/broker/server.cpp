// SPDX-License-Identifier: Apache-2.0
#include "broker/server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/awaitable.hpp>
#include <asio/basic_socket_acceptor.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/generic/seq_packet_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <unordered_map>
#include <utility>

#include "base/file.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "broker/connection.hpp"
#include "broker/descriptor_limit.hpp"
#include "broker/hub.hpp"
#include "broker/state_table_file.hpp"
#include "transport/credentials.hpp"
#include "transport/listener.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

using asio::awaitable;
using connection_ptr = std::shared_ptr<connection>;
using std::chrono::milliseconds;

/// Packets that one connection may have handled before others get their turn.
constexpr int packets_a_turn = 32;
/// Events that may wait for a slow subscriber before it is owed a resync instead.
constexpr std::size_t max_queued_events = 1024;
/// How often a peer that holds too many unread descriptors is looked at: the kernel has no event
/// for it.
constexpr milliseconds inflight_poll{2};
constexpr milliseconds accept_backoff{50};

gpushm::epoch random_epoch() {
  gpushm::epoch value;
  base::random_bytes(value);
  return value;
}

asio::generic::seq_packet_protocol unix_packets() {
  return {AF_UNIX, 0};
}

/// `co_await`s an operation and says what came of it instead of throwing.
auto into(asio::error_code& code) {
  return asio::redirect_error(asio::use_awaitable, code);
}

core::limits core_limits(const broker_limits& limits, std::uint64_t available) {
  const std::uint64_t descriptors =
      limits.max_descriptors == 0 ? available : std::min(limits.max_descriptors, available);
  core::limits result;
  result.max_segments = limits.max_segments;
  result.quota_bytes = limits.quota_bytes;
  result.quota_bytes_per_uid = limits.quota_bytes_per_uid;
  result.max_descriptors = descriptors;
  result.max_pending_opens = limits.max_pending_opens;
  return result;
}

}  // namespace

class server::impl final : public outbox {
 public:
  explicit impl(const broker_options& options)
      : options_(options),
        epoch_(random_epoch()),
        listener_(options.socket_path, options.mode, options.group),
        table_(options.limits.max_segments, epoch_),
        acceptor_(io_, unix_packets(), ::dup(listener_.descriptor())),
        deadline_timer_(io_),
        hub_(hub_config(), *this, &impl::on_slot, this) {}

  void run(void (*ready)(void*), void* context) {
    table_.hold();
    asio::co_spawn(io_, accept_loop(), asio::detached);
    ready(context);
    io_.run();
    table_.let_go();
  }

  void stop() { io_.stop(); }

  [[nodiscard]] const std::string& socket_path() const noexcept { return options_.socket_path; }
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept { return epoch_; }
  [[nodiscard]] broker_statistics statistics() const { return hub_.statistics(); }

  // ---- outbox
  // --------------------------------------------------------------------------------------

  void send(core::session_id session, outgoing packet) override {
    const connection_ptr to = find(session);
    if (!to || to->closed) {
      return;
    }
    if (packet.subscription && to->queue.size() >= max_queued_events) {
      to->lost_subscriptions.insert(*packet.subscription);
      return;
    }
    if (to->queue.empty() && try_send(*to, packet)) {
      return;
    }
    if (to->closed) {
      return;
    }
    to->queue.push_back(std::move(packet));
    start_writer(to);
  }

  void drop(core::session_id session) override {
    if (const connection_ptr gone = find(session)) {
      gone->closing = true;
      if (gone->queue.empty()) {
        close(*gone);
      }
    }
  }

 private:
  [[nodiscard]] hub::config hub_config() const {
    return {options_.domain,
            ::geteuid(),
            epoch_,
            core_limits(options_.limits,
                        descriptors_for_clients(options_.limits.reserved_descriptors,
                                                options_.raise_descriptor_limit)),
            options_.accept_fake_chunks,
            table_.descriptor()};
  }

  static void on_slot(void* self,
                      std::uint32_t slot,
                      gpushm::generation generation,
                      std::optional<segment_state> state) {
    static_cast<impl*>(self)->table_.set(slot, generation, state);
  }

  [[nodiscard]] connection_ptr find(core::session_id session) const {
    const auto at = connections_.find(session);
    return at == connections_.end() ? nullptr : at->second;
  }

  // ---- connections
  // ---------------------------------------------------------------------------------

  awaitable<void> accept_loop() {
    for (;;) {
      asio::error_code code;
      co_await acceptor_.async_wait(asio::socket_base::wait_read, into(code));
      if (code) {
        co_return;
      }
      packet_socket socket(io_);
      acceptor_.non_blocking(true);
      acceptor_.accept(socket, code);
      if (code == asio::error::would_block || code == asio::error::connection_aborted) {
        continue;
      }
      if (code) {
        // Out of descriptors, most likely. The connection waits in the backlog.
        base::log(log_level::warning, "accept: " + code.message());
        asio::steady_timer pause(io_, accept_backoff);
        co_await pause.async_wait(into(code));
        continue;
      }
      try {
        welcome(std::move(socket));
      } catch (const std::exception& why) {  // that client's misfortune must not end the loop
        base::log(log_level::warning, why.what());
      }
    }
  }

  void welcome(packet_socket socket) {
    socket.native_non_blocking(true);
    if (connections_.size() >= options_.limits.max_connections) {
      const auto packet =
          wire::encode({0,
                        wire::failure{0,
                                      errc::too_many_connections,
                                      "the broker has " + std::to_string(connections_.size()) +
                                          " connections, its limit",
                                      "close clients that are not used, or serve with a larger "
                                      "--max-connections"}});
      static_cast<void>(transport::send_packet(socket.native_handle(), packet, {}));
      return;
    }
    const auto peer = transport::peer_of(socket.native_handle());
    const core::session_id session = next_session_++;
    auto made = std::make_shared<connection>(session, std::move(socket));
    if (auto process = transport::pidfd_of_peer(made->socket.native_handle(), peer)) {
      made->process.emplace(io_, process.release());
    }
    connections_.emplace(session, made);
    hub_.accept(session, {peer.pid, peer.uid, peer.uid_known});
    asio::co_spawn(io_, read_loop(made), asio::detached);
    asio::co_spawn(io_, hello_deadline(made), asio::detached);
    if (made->process) {
      asio::co_spawn(io_, watch_process(made), asio::detached);
    }
  }

  /// Takes the connection out of the world; its coroutines see `closed` and end.
  void close(connection& gone) {
    if (gone.closed) {
      return;
    }
    gone.closed = true;
    gone.queue.clear();
    asio::error_code ignored;
    gone.socket.close(ignored);
    if (gone.process) {
      gone.process->close(ignored);
    }
    gone.drained.cancel();
    // The hub may be in the middle of a request of this or another session: tell it afterwards.
    asio::post(io_, [this, session = gone.session] {
      hub_.hang_up(session);
      connections_.erase(session);
      arm_deadline();
    });
  }

  awaitable<void> hello_deadline(connection_ptr of) {
    asio::steady_timer timer(io_, milliseconds(options_.limits.hello_timeout_ms));
    asio::error_code code;
    co_await timer.async_wait(into(code));
    if (!of->closed && hub_.is_silent(of->session)) {
      close(*of);
    }
  }

  awaitable<void> watch_process(connection_ptr of) {
    asio::error_code code;
    co_await of->process->async_wait(asio::posix::stream_descriptor::wait_read, into(code));
    if (of->closed || code) {
      co_return;
    }
    // A goodbye may be in the socket still: it makes the difference between an end and a death.
    while (read_some(of)) {
    }
    close(*of);
  }

  awaitable<void> read_loop(connection_ptr from) {
    while (!from->closed) {
      asio::error_code code;
      co_await from->socket.async_wait(asio::socket_base::wait_read, into(code));
      if (from->closed) {
        co_return;
      }
      if (code) {
        close(*from);
        co_return;
      }
      read_some(from);
      arm_deadline();
      // A client that does not read its answers is not asked for more.
      while (!from->closed && !from->queue.empty()) {
        co_await from->drained.async_wait(into(code));
      }
    }
  }

  /// Handles what has arrived, up to a turn's worth; true when that was used up.
  bool read_some(const connection_ptr& from) {
    for (int i = 0; i < packets_a_turn && !from->closed && !from->closing && from->queue.empty();
         ++i) {
      transport::received got;
      try {
        got = transport::receive_packet(from->socket.native_handle(), buffer_);
      } catch (const error& why) {
        base::log(log_level::warning, why.what());
        close(*from);
        return false;
      }
      switch (got.status) {
        case transport::receive_status::would_block:
          return false;
        case transport::receive_status::closed:
          close(*from);
          return false;
        case transport::receive_status::truncated:
        case transport::receive_status::descriptors_lost:
          hub_.receive_truncated(from->session);
          return false;
        case transport::receive_status::packet:
          hub_.receive(from->session,
                       got.packet,
                       std::move(got.descriptors),
                       std::chrono::steady_clock::now());
          break;
      }
    }
    return !from->closed && !from->closing && from->queue.empty();
  }

  // ---- sending
  // -------------------------------------------------------------------------------------

  /// False when the packet must wait, or the connection was closed.
  bool try_send(connection& to, const outgoing& packet) {
    const auto count = static_cast<std::uint32_t>(packet.descriptors.size());
    if (count != 0 && to.inflight_descriptors + count > options_.limits.max_inflight_descriptors) {
      if (transport::unread_bytes(to.socket.native_handle()) != 0) {
        return false;
      }
      to.inflight_descriptors = 0;
    }
    try {
      switch (
          transport::send_packet(to.socket.native_handle(), packet.packet, packet.descriptors)) {
        case transport::send_result::sent:
          to.inflight_descriptors += count;
          return true;
        case transport::send_result::would_block:
          return false;
        case transport::send_result::closed:
          break;
      }
    } catch (const error& why) {
      if (why.code() == errc::too_many_descriptors) {
        return false;  // the kernel's count for this uid is full: wait like for any slow reader
      }
      base::log(log_level::warning, why.what());
    }
    close(to);
    return false;
  }

  void start_writer(const connection_ptr& to) {
    if (!to->writer_runs) {
      to->writer_runs = true;
      asio::co_spawn(io_, write_loop(to), asio::detached);
    }
  }

  awaitable<void> write_loop(connection_ptr to) {
    const milliseconds patience(options_.limits.send_timeout_ms);
    auto give_up = std::chrono::steady_clock::now() + patience;
    while (!to->closed && !to->queue.empty()) {
      // A timer instead of the socket's own event: that one does not come for unread descriptors.
      asio::steady_timer pause(io_, inflight_poll);
      asio::error_code code;
      co_await pause.async_wait(into(code));
      const std::size_t before = to->queue.size();
      while (!to->closed && !to->queue.empty() && try_send(*to, to->queue.front())) {
        to->queue.pop_front();
      }
      if (to->queue.size() < before) {
        give_up = std::chrono::steady_clock::now() + patience;
      } else if (!to->closed && std::chrono::steady_clock::now() >= give_up) {
        base::log(log_level::warning, "dropped a client that does not read");
        close(*to);
      }
    }
    to->writer_runs = false;
    if (!to->closed) {
      for (const std::uint64_t subscription : std::exchange(to->lost_subscriptions, {})) {
        wire::event resync;
        resync.kind = event_kind::resync;
        outgoing packet;
        packet.packet = wire::encode({subscription, std::move(resync)});
        packet.subscription = subscription;
        send(to->session, std::move(packet));
      }
      if (to->closing && to->queue.empty()) {
        close(*to);
      }
    }
    to->drained.cancel();
  }

  // ---- opens that wait
  // -----------------------------------------------------------------------------

  void arm_deadline() {
    const auto next = hub_.next_deadline();
    if (!next || (armed_for_ && *armed_for_ <= *next)) {
      return;
    }
    armed_for_ = next;
    deadline_timer_.expires_at(*next);
    deadline_timer_.async_wait([this](asio::error_code code) {
      if (code) {
        return;  // armed anew for an earlier one
      }
      armed_for_.reset();
      hub_.tick(std::chrono::steady_clock::now());
      arm_deadline();
    });
  }

  broker_options options_;
  gpushm::epoch epoch_;
  transport::listener listener_;
  state_table_file table_;
  asio::io_context io_{1};
  asio::basic_socket_acceptor<asio::generic::seq_packet_protocol> acceptor_;
  asio::steady_timer deadline_timer_;
  std::optional<core::time_point> armed_for_;
  std::array<std::byte, wire::max_packet_bytes> buffer_{};
  core::session_id next_session_ = 1;
  std::unordered_map<core::session_id, connection_ptr> connections_;
  hub hub_;
};

server::server(const broker_options& options) : impl_(std::make_unique<impl>(options)) {}
server::~server() = default;
void server::run(void (*ready)(void*), void* context) {
  impl_->run(ready, context);
}
void server::stop() {
  impl_->stop();
}
const std::string& server::socket_path() const noexcept {
  return impl_->socket_path();
}
broker_statistics server::statistics() const {
  return impl_->statistics();
}
const gpushm::epoch& server::epoch() const noexcept {
  return impl_->epoch();
}

}  // namespace gpushm::broker_detail
