// SPDX-License-Identifier: Apache-2.0
#include "broker/server.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <utility>

#include "base/file.hpp"
#include "base/memory_limit.hpp"
#include "base/syscall.hpp"
#include "broker/closer.hpp"
#include "broker/connection.hpp"
#include "broker/deadlines.hpp"
#include "broker/descriptor_limit.hpp"
#include "broker/endings.hpp"
#include "broker/hub.hpp"
#include "broker/hub_driver.hpp"
#include "broker/member_log.hpp"
#include "broker/porter.hpp"
#include "broker/retry_poll.hpp"
#include "broker/sender.hpp"
#include "broker/state_table_file.hpp"
#include "broker/turn_loop.hpp"
#include "transport/credentials.hpp"
#include "transport/listener.hpp"
#include "transport/packet_socket.hpp"
#include "transport/principal.hpp"
#include "wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

using connection_ptr = std::shared_ptr<connection>;
using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Connections that are accepted in a turn.
constexpr int accepts_a_turn = 8;
constexpr milliseconds accept_backoff{50};
gpushm::epoch random_epoch() {
  gpushm::epoch value;
  base::random_bytes(value);
  return value;
}

/// Half of what this process may use at most, for what members make it hold: the other half is for
/// the program itself, and for what the kernel and the allocator add.
std::uint64_t default_memory_limit() {
  constexpr std::uint64_t most = 1024ULL * 1024 * 1024;
  constexpr std::uint64_t least = 16ULL * 1024 * 1024;
  return std::clamp(base::memory_limit_bytes() / 2, least, most);
}

core::limits core_limits(const broker_limits& limits, std::uint64_t available) {
  const std::uint64_t descriptors =
      limits.max_descriptors == 0 ? available : std::min(limits.max_descriptors, available);
  core::limits result;
  result.max_segments = limits.max_segments;
  result.quota_bytes = limits.quota_bytes;
  result.quota_bytes_per_principal = limits.quota_bytes_per_principal;
  result.max_descriptors = descriptors;
  result.max_memory_bytes = limits.memory_bytes == 0 ? default_memory_limit() : limits.memory_bytes;
  result.max_connections = limits.max_connections;
  result.max_pending_opens = limits.max_pending_opens;
  return result;
}

}  // namespace

class server::impl final : public outbox {
 public:
  explicit impl(const broker_options& options)
      : options_(options),
        log_(options.domain),
        epoch_(random_epoch()),
        listener_(options.socket_path, options.mode, options.group, options.lock_path),
        table_(options.limits.max_segments, epoch_),
        closer_(std::make_shared<closer>()),
        hub_(hub_config(), *this, &impl::on_slot, this),
        listener_events_(io_, listener_.descriptor()),
        porter_events_(io_, porter_.descriptor()),
        accept_pause_(io_),
        spare_(spare_descriptor()),
        loop_(
            io_, log_, [this](connection& of) { step(of); }, [this] { driver_.schedule(); }),
        driver_(io_, hub_, loop_, log_),
        endings_(
            io_, hub_, driver_, loop_, porter_, log_, milliseconds(options.limits.fence_delay_ms)),
        deadlines_(io_,
                   hub_,
                   endings_,
                   log_,
                   {milliseconds(options.limits.hello_timeout_ms),
                    milliseconds(options.limits.send_timeout_ms)}),
        poll_(io_, loop_),
        sender_(loop_, deadlines_, poll_, endings_, log_, options.limits.max_inflight_descriptors),
        accept_([this] { log_.guarded([&] { accept_some(); }); }) {
    loop_.join(accept_, "accept");
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() override {
    listener_events_.release();
    porter_events_.release();
    // Handlers that wait in `io_` keep connections beyond what those belong to.
    hub_.for_each_session([this](session& each) {
      connection& of = connection_of(each);
      of.process.stop();
      of.ending.reset();
      loop_.leave(of);
      of.queue.clear();
      of.held.reset();
    });
  }

  void run(void (*ready)(void*), void* context) {
    table_.hold();
    watch_listener();
    watch_porter();
    ready(context);
    io_.run();
    table_.let_go();
  }

  void stop() { io_.stop(); }

  [[nodiscard]] const std::string& socket_path() const noexcept { return options_.socket_path; }
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept { return epoch_; }
  [[nodiscard]] broker_statistics statistics() const { return hub_.statistics(); }

  // ---- outbox ----

  void send(session& to, prepared packet) noexcept override {
    sender_.send(connection_of(to), std::move(packet));
  }

  void lose_event(session& of, std::uint64_t subscription) noexcept override {
    sender_.lose_event(connection_of(of), subscription);
  }

  void fence_of(session& of, fence kind, base::guarded_fd pidfd, base::guarded_fd life) override {
    endings_.set_fence(connection_of(of), kind, std::move(pidfd), std::move(life));
  }

  void drop(session& of, std::string_view why) noexcept override {
    endings_.drop(connection_of(of), why);
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
            table_.descriptor(),
            options_.shared ? options_.shared->budget() : nullptr,
            closer_,
            milliseconds(options_.limits.fence_delay_ms)};
  }

  static void on_slot(void* self,
                      std::uint32_t slot,
                      gpushm::generation generation,
                      std::optional<segment_state> state) {
    static_cast<impl*>(self)->table_.set(slot, generation, state);
  }

  [[nodiscard]] static connection& connection_of(session& of) noexcept {
    return static_cast<connection&>(of);
  }

  /// Null: it was forgotten.
  [[nodiscard]] connection* find(core::session_id number) const noexcept {
    return static_cast<connection*>(hub_.find(number));
  }

  // ---- turns ----

  /// A bounded part of what there is to do for a connection.
  void step(connection& of) {
    try {
      if (of.may_flush()) {
        sender_.flush(of);
      } else if (of.may_answer() && of.rest) {
        hub_.resume(of);
      } else if (of.last_packets) {
        read_last(of);
      } else if (of.may_read()) {
        read_one(of);
      }
    } catch (const std::exception& why) {
      log_.dropped(of, why.what());
      endings_.close(of);
    }
  }

  // ---- accepting ----

  void watch_listener() {
    listener_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                                [this](asio::error_code code) {
                                  if (!code) {
                                    loop_.ask(accept_);
                                  }
                                });
  }

  void accept_some() {
    for (int i = 0; i < accepts_a_turn; ++i) {
      base::guarded_fd socket = base::guarded_fd::open([&] {
        return ::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      });
      if (socket) {
        log_.guarded([&] { welcome(std::move(socket)); });
        continue;
      }
      switch (errno) {
        case EAGAIN:
          watch_listener();
          return;
        case EINTR:
        case ECONNABORTED:
          continue;
        case EMFILE:
        case ENFILE:
          refuse_one();
          [[fallthrough]];
        default:
          log_.write("accept: " + base::errno_text(errno));
          accept_pause_.expires_after(accept_backoff);
          accept_pause_.async_wait([this](asio::error_code code) {
            if (!code) {
              loop_.ask(accept_);
            }
          });
          return;
      }
    }
    loop_.ask(accept_);
  }

  [[nodiscard]] static base::guarded_fd spare_descriptor() {
    return base::guarded_fd::open([] { return ::eventfd(0, EFD_CLOEXEC); });
  }

  /// This process has no descriptor left: the spare one tells one client so.
  void refuse_one() {
    const int why = errno;
    spare_.reset();
    base::guarded_fd socket = base::guarded_fd::open([&] {
      return ::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (socket) {
      refuse(std::move(socket),
             {"clients of this broker", true},
             error(errc::too_many_descriptors,
                   {},
                   {},
                   "the broker has no descriptors left for another connection",
                   "raise the broker's open file limit, or remove segments"));
    }
    spare_ = spare_descriptor();
    errno = why;
  }

  void refuse(base::guarded_fd socket, const core::principal& who, const error& why) {
    const auto packet =
        wire::encode({0, wire::failure{0, why.code(), why.cause(), why.next_step()}});
    static_cast<void>(transport::send_packet(socket.get(), packet, {}));
    endings_.close_socket(who, std::move(socket));
  }

  void welcome(base::guarded_fd socket) {
    const auto peer = transport::peer_of(socket.get());
    base::guarded_fd process = transport::pidfd_of_peer(socket.get(), peer);
    const auto payer = transport::principal_of(peer, process.get());
    const core::principal who{payer.key, payer.vouched_for};
    const auto made = std::make_shared<connection>(io_, next_session_++, std::move(socket));
    try {
      hub_.accept(made, {peer.pid, peer.uid, peer.uid_known, who});
    } catch (const error& why) {
      made->events.release();
      refuse(std::move(made->socket), who, why);
      return;
    }
    try {
      made->peer = peer;
      made->principal = who;
      made->held = hub_.new_charges(*made);
      // And 0: of what it holds.
      made->lost_subscriptions.reserve(hub_.domain().bounds().max_subscriptions + 1);
      loop_.join(*made);
      made->process = end_watch(io_, std::move(process));
      deadlines_.expect_hello(*made, clock::now());
      endings_.remember(*made);
    } catch (...) {
      hub_.hang_up(made->number);
      throw;
    }
    endings_.watch_process(*made);
    made->readable = true;  // it has probably said hello already
    loop_.ask(*made);
  }

  void read_last(connection& from) {
    if (--*from.last_packets < 0 || from.dropped || from.at_porter_since ||
        next_has_descriptors(from.socket.get()) || !receive(from)) {
      endings_.close(from);
    }
  }

  // ---- receiving ----

  void watch(connection& of) {
    if (of.wait_armed || of.closed) {
      return;
    }
    of.wait_armed = true;
    of.events.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, kept = of.shared_from_this()](asio::error_code code) {
                           kept->wait_armed = false;
                           if (code || kept->closed) {
                             return;
                           }
                           kept->readable = true;
                           loop_.ask(*kept);
                         });
  }

  void read_one(connection& from) {
    if (next_has_descriptors(from.socket.get())) {
      if (porter_.fetch(from.number, from.principal.key, from.socket.get())) {
        deadlines_.expect_porter(from, clock::now());
      } else {
        from.readable = false;  // it has too much to do: look again soon
        poll_.later(from);
      }
      return;
    }
    if (!receive(from) && !from.closed) {
      from.readable = false;
      watch(from);
    }
  }

  /// One packet without descriptors; false when there is none, or the connection was closed.
  bool receive(connection& from) {
    auto got = transport::receive_guarded(from.socket.get(), buffer_);
    switch (got.status) {
      case transport::receive_status::would_block:
        return false;
      case transport::receive_status::closed:
        endings_.close(from);
        return false;
      case transport::receive_status::truncated:
        hub_.receive_truncated(from);
        return false;
      case transport::receive_status::descriptors_lost:
        hub_.receive_without_descriptors(from, got.packet);
        break;
      case transport::receive_status::packet:
        hub_.receive(from, got.packet, std::move(got.descriptors), clock::now());
        break;
    }
    sender_.settle_after_request(from);
    return !from.closed;
  }

  void watch_porter() {
    porter_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this](asio::error_code code) {
                                if (code) {
                                  return;
                                }
                                while (auto parcel = porter_.next()) {
                                  log_.guarded([&] { take(*parcel); });
                                }
                                watch_porter();
                              });
  }

  void take(porter::parcel& parcel) {
    connection* const found = find(parcel.session);
    if (found == nullptr || found->closed) {
      closer_->close(std::move(parcel.descriptors));
      return;
    }
    connection& from = *found;
    deadlines::porter_is_done(from);
    if (parcel.failed) {
      endings_.close(from);
      return;
    }
    switch (parcel.status) {
      case transport::receive_status::would_block:
        break;
      case transport::receive_status::closed:
        endings_.close(from);
        return;
      case transport::receive_status::truncated:
        hub_.receive_truncated(from);
        break;
      case transport::receive_status::descriptors_lost:
        hub_.receive_without_descriptors(from, parcel.packet);
        break;
      case transport::receive_status::packet:
        hub_.receive(
            from, parcel.packet, std::move(parcel.descriptors), clock::now(), parcel.foreign);
        break;
    }
    loop_.ask(from);
  }

  broker_options options_;
  member_log log_;
  gpushm::epoch epoch_;
  transport::listener listener_;
  state_table_file table_;
  std::shared_ptr<closer> closer_;
  porter porter_;
  asio::io_context io_{1};  // before what holds connections
  hub hub_;
  asio::posix::stream_descriptor listener_events_;
  asio::posix::stream_descriptor porter_events_;
  asio::steady_timer accept_pause_;
  std::array<std::byte, wire::max_packet_bytes> buffer_{};
  base::guarded_fd spare_;  ///< given up to tell a client that there is none
  core::session_id next_session_ = 1;
  turn_loop loop_;
  hub_driver driver_;
  endings endings_;
  deadlines deadlines_;
  retry_poll poll_;
  sender sender_;
  turn_loop::job accept_;
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
