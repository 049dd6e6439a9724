// SPDX-License-Identifier: Apache-2.0
#include "broker/server/admission.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/files/syscall.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/principal.hpp"
#include "protocol/transport/unread.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

/// Connections accepted in a turn, and those of them that become sessions: the rest costs little.
constexpr int accepts_per_turn = 16;
constexpr int sessions_per_turn = 8;
/// Pause before the next attempt when none can be accepted.
constexpr std::chrono::milliseconds accept_backoff{50};
/// The same for a keeper that is busy: its queue has room for ten descriptors.
constexpr std::chrono::milliseconds pause_for_keeper{1};

base::guarded_fd spare_descriptor() {
  return base::guarded_fd::open([] { return ::eventfd(0, EFD_CLOEXEC); });
}

base::guarded_fd accept_one(const transport::listener& listener) {
  return base::guarded_fd::open([&] {
    return ::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  });
}

/// Its peer has closed it and sent nothing: a flood of these must not keep others in the backlog.
bool is_abandoned(int socket) {
  pollfd entry{socket, 0, 0};
  int bytes = 0;
  return base::retry([&] { return ::poll(&entry, 1, 0); }) == 1 && (entry.revents & POLLHUP) != 0 &&
         ::ioctl(socket, FIONREAD, &bytes) == 0 && bytes == 0 &&
         transport::first_unread(socket) == transport::unread::nothing;
}

}  // namespace

admission::admission(asio::io_context& io,
                     const transport::listener& listening,
                     hub& sessions,
                     turn_loop& loop,
                     deadlines& late,
                     session_ender& ends,
                     member_log& log,
                     succession::recorder& records,
                     core::session_id first_session)
    : io_(io),
      listener_(listening),
      hub_(sessions),
      loop_(loop),
      deadlines_(late),
      session_ender_(ends),
      log_(log),
      recorder_(records),
      accept_([this] { accept_some(); }),
      events_(io, listening.descriptor()),
      pause_(io),
      spare_(spare_descriptor()),
      next_session_(first_session) {
  loop_.join(accept_, "accept");
}

admission::~admission() {
  events_.release();
  if (arriving_) {
    drop(*arriving_);
  }
}

void admission::start() {
  if (arriving_) {
    loop_.request_turn(accept_);
    return;
  }
  events_.async_wait(asio::posix::stream_descriptor::wait_read, [this](asio::error_code code) {
    if (!code) {
      loop_.request_turn(accept_);
    }
  });
}

void admission::accept_some() {
  const succession::recorder::step named(recorder_, {succession::step_kind::accept, 0});
  int sessions = 0;
  for (int i = 0; i < accepts_per_turn && sessions < sessions_per_turn; ++i) {
    if (recorder_.is_keeper_behind()) {
      recorder_.commit();
    }
    if (!arriving_) {
      base::guarded_fd socket = accept_one(listener_);
      if (socket && is_abandoned(socket.get())) {
        continue;
      }
      if (socket) {
        ++sessions;
        arriving_.emplace();
        arriving_->socket = std::move(socket);
        arriving_->who = {"clients of this broker", true};
      }
    }
    if (arriving_) {
      bool is_busy = false;
      log_.guarded([&] {
        try {
          welcome(*arriving_);
        } catch (const succession::keeper_busy&) {
          is_busy = true;
        }
      });
      if (is_busy) {
        accept_later(pause_for_keeper);
        return;
      }
      arriving_.reset();
      continue;
    }
    switch (errno) {
      case EAGAIN:
        start();
        return;
      case EINTR:
      case ECONNABORTED:
        continue;
      case EMFILE:
      case ENFILE:
        refuse_one();
        [[fallthrough]];
      default:
        log_.guarded([why = errno, this] { log_.write("accept: " + base::errno_text(why)); });
        accept_later(accept_backoff);
        return;
    }
  }
  loop_.request_turn(accept_);
}

void admission::accept_later(std::chrono::milliseconds pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this](asio::error_code code) {
    if (!code) {
      loop_.request_turn(accept_);
    }
  });
}

/// Throws keeper_busy: try again. Nothing is left of it after any other exception.
void admission::welcome(arrival& newcomer) {
  std::shared_ptr<connection> created;
  try {
    if (!newcomer.peer) {
      const transport::peer_credentials peer = transport::peer_of(newcomer.socket.get());
      newcomer.process.file = transport::pidfd_of_peer(newcomer.socket.get(), peer);
      const auto payer = transport::principal_of(peer, newcomer.process.get());
      newcomer.who = {payer.key, payer.vouched_for};
      // The domain of a broker without a successor belongs to that uid, wherever its processes are.
      const bool is_foreign = recorder_.is_on() && peer.uid_known && peer.uid == ::geteuid() &&
                              !transport::is_in_no_other_container(peer, newcomer.process.get());
      newcomer.member = core::peer{peer.pid, peer.uid, peer.uid_known, newcomer.who, is_foreign};
      newcomer.peer = peer;
    }
    try {
      hub_.check_room_for(*newcomer.member);
    } catch (const error& why) {
      turn_away(newcomer, why);
      return;
    }
    recorder_.keep(newcomer.socket);
    recorder_.keep(newcomer.process);
    created =
        std::make_shared<connection>(io_, next_session_++, std::move(newcomer.socket), recorder_);
  } catch (const succession::keeper_busy&) {
    throw;
  } catch (const error& why) {
    if (why.code() == errc::timed_out) {
      turn_away(newcomer, why);
      return;
    }
    drop(newcomer);
    throw;
  } catch (...) {
    drop(newcomer);
    throw;
  }
  try {
    created->process_id = newcomer.process.id;
    hub_.accept(created, *newcomer.member);
  } catch (const error& why) {
    refuse(created->requests.take_socket(), newcomer.who, why);
    return;
  } catch (...) {
    session_ender_.close_socket(newcomer.who, created->requests.take_socket());
    throw;
  }
  try {
    start(created, *newcomer.peer, newcomer.who, std::move(newcomer.process.file));
  } catch (...) {
    hub_.hang_up(created->number);
    session_ender_.close_socket(newcomer.who, created->requests.take_socket());
    throw;
  }
  session_ender_.watch_process(*created);
  created->requests.readable = true;  // Hello has probably arrived
  loop_.request_turn(*created);
}

void admission::turn_away(arrival& newcomer, const error& why) {
  recorder_.forget(newcomer.process.id);
  refuse(std::move(newcomer.socket), newcomer.who, why);
}

/// Descriptors may have arrived in its socket already.
void admission::drop(arrival& newcomer) noexcept {
  recorder_.forget(newcomer.process.id);
  // If there is no memory for the connection, it has not been moved.
  session_ender_.close_socket(newcomer.who, std::move(newcomer.socket));
}

void admission::start(const std::shared_ptr<connection>& created,
                      const transport::peer_credentials& peer,
                      const core::principal& principal,
                      base::guarded_fd process) {
  created->peer = peer;
  created->principal = principal;
  created->held = hub_.new_charges(*created);
  // One per subscription, and one for number 0: events about its leases.
  created->lost_subscriptions.reserve(hub_.domain().bounds().max_subscriptions + 1);
  loop_.join(*created);
  created->process = end_watch(io_, std::move(process));
  if (!created->greeted) {
    deadlines_.expect_hello(*created, std::chrono::steady_clock::now());
  }
  session_ender_.track(*created);  // last: only a close removes it
}

/// This process has no descriptor left: uses the spare one to refuse one client. Keeps `errno`.
void admission::refuse_one() {
  const int why = errno;
  spare_.reset();
  log_.guarded([&] {
    base::guarded_fd socket = accept_one(listener_);
    if (socket) {
      refuse(std::move(socket),
             {"clients of this broker", true},
             error(errc::too_many_descriptors,
                   {},
                   {},
                   "the broker has no descriptors left for another connection",
                   "raise the broker's open file limit, or remove segments"));
    }
  });
  spare_ = spare_descriptor();
  errno = why;
}

void admission::refuse(succession::kept_fd socket,
                       const core::principal& principal,
                       const error& why) {
  hub_.count_refused_connection(why.code());
  log_.guarded([&] {
    const auto packet =
        wire::encode({0, wire::failure{0, why.code(), why.cause(), why.next_step(), why.pid()}});
    static_cast<void>(transport::send_packet(socket.get(), packet, {}));
  });
  session_ender_.close_socket(principal, std::move(socket));
}

}  // namespace gpushm::broker_detail
