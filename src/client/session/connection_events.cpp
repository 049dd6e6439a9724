// SPDX-License-Identifier: Apache-2.0
// The event lane, which the connection's thread reads.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "base/segments/device_loss.hpp"
#include "base/text/quoted.hpp"
#include "client/session/connection.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::milliseconds;

/// Retry interval while the kernel has no memory for a packet.
constexpr milliseconds pause_without_memory{1};
/// While the connection's thread reads events and maps the state table of the next broker, which
/// takes some microseconds.
constexpr milliseconds pause_for_events{1};
constexpr milliseconds longest_wait_for_events{10'000};
/// Limit for the current reader of the request lane, which detects its end immediately.
constexpr milliseconds drain_timeout{100};

/// Sets a mark while it exists.
class reading_mark {
 public:
  explicit reading_mark(std::atomic<bool>& mark) noexcept : mark_(mark) { mark_.store(true); }
  reading_mark(const reading_mark&) = delete;
  reading_mark& operator=(const reading_mark&) = delete;
  ~reading_mark() { mark_.store(false); }

 private:
  std::atomic<bool>& mark_;
};

/// Reports memory of this process that is gone: its driver calls fail without this reason.
void log_loss(const wire::event& event) {
  if (!event.loss) {
    return;
  }
  const std::string why = base::text_of(event.loss);
  base::log(log_level::warning,
            "the memory of segment " + base::in_quotes(event.name) + " is gone: its GPU was lost" +
                (why.empty() ? "" : ": " + why));
}

}  // namespace

void connection::wake_thread() noexcept {
  const std::uint64_t one = 1;
  const std::lock_guard lock(wake_mutex_);
  static_cast<void>(base::retry([&] { return ::write(wake_.get(), &one, sizeof one); }));
}

/// Does not block: the connection's thread sends what the socket does not accept now.
void connection::push(send_queue& queue, const wire::message& message) noexcept {
  try {
    if (!broken() && queue.push(wire::encode(message))) {
      wake_thread();
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

void connection::read_events() {
  // Another thread has the turn, drops abandoned replies, and wakes this thread after it.
  bool turn_owner_drains = false;
  for (;;) {
    base::held_log_lines lines;
    std::array<pollfd, 3> waits{{{events_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {-1, 0, 0}}};
    if (event_queue_.pending()) {
      waits[0].events = POLLIN | POLLOUT;
    }
    const bool abandoned = !turn_owner_drains && late_.any_abandoned();
    if (requests_.queue().pending() || abandoned) {
      waits[2].fd = requests_.socket();
      waits[2].events = static_cast<short>((requests_.queue().pending() ? POLLOUT : 0) |
                                           (abandoned ? POLLIN : 0));
    }
    int timeout = -1;
    if (const auto due = takes_reports_ ? reports_.due() : std::nullopt) {
      if (*due <= std::chrono::steady_clock::now()) {
        send_report();
        continue;
      }
      timeout = static_cast<int>(time_left(*due).count());
    }
    const int count = ::poll(waits.data(), waits.size(), timeout);
    if (count < 0 && errno != EINTR) {
      break;
    }
    if (count <= 0) {
      continue;
    }
    if (waits[1].revents != 0) {
      std::uint64_t drained = 0;
      static_cast<void>(base::retry([&] { return ::read(wake_.get(), &drained, sizeof drained); }));
      turn_owner_drains = false;
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        return;
      }
    }
    if ((waits[0].revents & ~POLLIN) != 0) {
      flush(event_queue_);
    }
    if ((waits[2].revents & ~POLLIN) != 0) {
      flush(requests_.queue());
    }
    if (waits[2].revents != 0 && abandoned) {
      turn_owner_drains = !drop_abandoned();
    }
    try {
      if (waits[0].revents != 0 && !read_available()) {
        break;
      }
    } catch (const std::exception& why) {
      base::log(log_level::warning, why.what());
      break;
    }
    if (broken()) {  // the request lane has ended
      break;
    }
  }
  base::held_log_lines lines;
  break_down();
}

/// The kernel may lack memory for a packet; the connection continues.
void connection::flush(send_queue& queue) noexcept {
  try {
    static_cast<void>(queue.flush());
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    base::pause_before_retry(pause_without_memory);
  }
}

/// Receives and dispatches all available packets. Returns false at the end of the lane.
bool connection::read_available() {
  const reading_mark mark(is_reading_events_);  // before a packet leaves the socket
  for (;;) {
    received_packet got = receive_one(events_.get(), buffer_.bytes());
    switch (got.what) {
      case received_packet::kind::nothing:
        return true;
      case received_packet::kind::malformed:
        note_dropped({0, errc::protocol_error, "it sent a malformed packet", {}});
        return false;
      case received_packet::kind::closed:
        return false;
      case received_packet::kind::packet:
        dispatch(std::move(*got.one));
    }
  }
}

void connection::dispatch(packet packet) {
  const std::uint64_t id = packet.message.id;
  if (auto* confirm = std::get_if<wire::confirm>(&packet.message.body)) {
    worker_.confirm(std::move(*confirm));
    return;
  }
  if (auto* event = std::get_if<wire::event>(&packet.message.body)) {
    if (id == 0) {  // for a lease, not for a subscription; a resync has generation 0
      log_loss(*event);
      worker_.lost(event->generation);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (const auto sink = sinks_.find(id); sink != sinks_.end()) {
      sink->second->deliver({event->kind,
                             std::move(event->name),
                             event->generation,
                             event->leases,
                             event->peer_pid,
                             event->loss.cause,
                             event->loss.xid});
    }
    return;
  }
  if (std::holds_alternative<wire::continued>(packet.message.body)) {
    follow(packet);
    return;
  }
  reply late = to_reply(std::move(packet));
  bound_descriptors(late);
  static_cast<void>(late_.deliver(id, late));  // without a waiter, its grants are returned
}

/// Maps the table of the broker's successor in place of the table of the broker, which other
/// threads read meanwhile. Throws if that fails: the connection then ends, and the next one has
/// that table.
void connection::follow(const packet& successor) {
  const subject about{"follow the broker's successor", info_.socket_path};
  if (successor.descriptors_lost) {
    throw error(errc::too_many_descriptors,
                about.operation,
                about.object,
                "this process has no descriptor left for its state table",
                "raise its open file limit (ulimit -n)");
  }
  if (successor.descriptors.size() != 1) {
    throw unexpected_reply(about);
  }
  const int file = successor.descriptors.front().get();
  const base::mapping_value& place = table_mapping_.get();
  const base::unique_mapping next = map_table(file, about);
  if (next.get().size_bytes != place.size_bytes ||
      !wire::state_table_view(next.get().address, place.size_bytes, info_.epoch)) {
    throw unexpected_reply(about);
  }
  // As mmap, which ThreadSanitizer takes for a write that races with the readers.
  constexpr long access = PROT_READ;
  constexpr long how = MAP_SHARED | MAP_FIXED;
  if (::syscall(SYS_mmap, place.address, place.size_bytes, access, how, long{file}, 0L) == -1) {
    base::throw_errno(errno, about.operation, about.object, "mmap");
  }
  table_.end_pause();
}

/// A successor sends its table before it handles requests: what is neither in the socket nor in the
/// hands of the connection's thread has not been sent, and the states are as the last broker left
/// them, unless the socket was full.
bool connection::has_next_table() const noexcept {
  if (forks_ != fork_count()) {
    return false;
  }
  const auto deadline = base::deadline_after(longest_wait_for_events);
  while (!table_.has_writer() && !broken() && may_have_unread_events() &&
         std::chrono::steady_clock::now() < deadline) {
    base::pause_before_retry(pause_for_events);
  }
  return table_.has_writer();
}

bool connection::may_have_unread_events() const noexcept {
  {
    const std::lock_guard lock(events_end_mutex_);
    pollfd lane{events_.get(), POLLIN, 0};  // none: closed
    if (::poll(&lane, 1, 0) != 0) {
      return !broken();
    }
  }
  return is_reading_events_.load();
}

/// Records the broker's reason for closing the connection.
void connection::note_dropped(const wire::failure& why) {
  const std::lock_guard lock(mutex_);
  drop_reason_ = why.cause;
  if (!why.next_step.empty()) {
    drop_reason_ += " (" + why.next_step + ")";
  }
}

/// Returns the grants of abandoned replies. Returns false if another thread has the turn, which
/// drops those that precede its own reply.
bool connection::drop_abandoned() noexcept {
  try {
    const auto turn = requests_.take_turn(steady_time{});
    if (!turn) {
      return false;
    }
    for (;;) {
      received_packet got = turn.receive(steady_time{});
      if (!got.one) {
        if (got.what != received_packet::kind::nothing) {
          broken_.store(true, std::memory_order_release);
        }
        return true;
      }
      const std::uint64_t id = got.one->message.id;
      reply one = to_reply(std::move(*got.one));
      static_cast<void>(late_.deliver(id, one));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
  return true;
}

/// The broker sends the reason on the request lane, which may have no reader.
void connection::read_drop_reason() noexcept {
  try {
    const auto turn = requests_.take_turn(std::chrono::steady_clock::now() + drain_timeout);
    while (turn) {
      const received_packet got = turn.receive(steady_time{});
      if (!got.one) {
        return;
      }
      if (const auto* failure = std::get_if<wire::failure>(&got.one->message.body)) {
        note_dropped(*failure);
      }
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

bool connection::was_dropped() const {
  const std::lock_guard lock(mutex_);
  return !drop_reason_.empty();
}

void connection::break_down() noexcept {
  broken_.store(true, std::memory_order_release);
  ::shutdown(events_.get(), SHUT_RDWR);
  read_drop_reason();
  ::shutdown(requests_.socket(), SHUT_RDWR);  // ends the waits of other threads there
  late_.end();
  worker_.broker_ended(was_dropped());
  std::string log_line;
  log_level level = log_level::info;
  try {
    log_line = gone({}).what();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then nothing is logged
  }
  {
    const std::lock_guard lock(mutex_);
    if (!drop_reason_.empty() || table_.broker_alive()) {
      level = log_level::warning;  // it is running, but closed the connection
    }
    for (const auto& [id, sink] : sinks_) {
      sink->broker_gone();
    }
  }
  base::log(level, log_line);
  close_all();
}

/// Leases keep this object, and so would its descriptors, as often as a broker is lost.
void connection::close_all() noexcept {
  event_queue_.close();
  {
    const std::lock_guard lock(events_end_mutex_);
    events_.reset();
  }
  {
    const std::lock_guard lock(wake_mutex_);
    wake_.reset();
  }
  // A thread that has the turn is about to leave it: its wait has ended.
  if (const auto turn = requests_.take_turn(base::deadline_after(drain_timeout))) {
    turn.close_lane();
  }
}

}  // namespace gpushm::client_detail
