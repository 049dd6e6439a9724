// SPDX-License-Identifier: Apache-2.0
#include "client/connection.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/syscall.hpp"
#include "base/thread.hpp"
#include "client/fence_proof.hpp"
#include "transport/credentials.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::detail {

namespace {

using std::chrono::milliseconds;

/// How often the kernel is asked again to take descriptors that it has refused.
constexpr milliseconds inflight_poll{2};

/// Descriptors that answers may hold before somebody takes them: a share of what this process may
/// open.
std::size_t most_held_descriptors() {
  rlimit limit{};
  constexpr rlim_t fewest = 64;
  constexpr rlim_t most = 16'384;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fewest;
  }
  return std::clamp(limit.rlim_cur / 4, fewest, most);
}

/// False: the kernel takes no more descriptors now.
bool try_greet(int socket,
               std::span<const std::byte> hello,
               std::span<const int> descriptors,
               const subject& about,
               steady_time deadline) {
  try {
    if (transport::send_packet(socket, hello, descriptors) == transport::send_result::closed) {
      // It may have said why before it closed: that is read next.
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

/// What a packet grants; 0: nothing.
gpushm::generation granted_by(const wire::body& body) noexcept {
  if (const auto* opened = std::get_if<wire::opened>(&body)) {
    return opened->segment.generation;
  }
  if (const auto* reserved = std::get_if<wire::reserved>(&body)) {
    return reserved->generation;
  }
  return 0;
}

error timed_out(const subject& about) {
  return {errc::timed_out,
          about.operation,
          about.object,
          "the broker did not answer in time",
          "see whether it is stopped or overloaded, or use a longer request timeout"};
}

base::guarded_fd new_eventfd(const std::string& path) {
  return base::guarded_fd::open([&] {
    return base::checked(
        "connect", path, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  });
}

}  // namespace

error from_wire(const wire::failure& failure, const subject& about) {
  return {failure.code, about.operation, about.object, failure.cause, failure.next_step};
}

error unexpected_answer(const subject& about) {
  return {errc::protocol_error,
          about.operation,
          about.object,
          "the broker's answer is not one to this request",
          "use a broker of the same version"};
}

// ---- beginning and end ----

connection::connection(lanes sockets,
                       const wire::welcome& welcome,
                       broker_info info,
                       base::unique_mapping table,
                       wire::state_table_view view)
    : info_(std::move(info)),
      table_mapping_(std::move(table)),
      table_(view),
      wake_(new_eventfd(info_.socket_path)),
      takes_reports_(welcome.takes_reports),
      resumed_(welcome.resumed),
      token_(welcome.token),
      requests_(std::move(sockets.requests)),
      events_(std::move(sockets.events)),
      buffer_(wire::max_packet_bytes),
      held_(most_held_descriptors()),
      worker_(*this, [this](std::uint64_t id, const wire::confirmed& said) {
        push_event({id, said});
      }) {}

/// Sends the hello, with what shows the end of this process.
void connection::greet(int socket,
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
                                               resume}});
  while (!try_greet(socket, hello, proof.descriptors(), about, deadline)) {
    base::pause_before_retry(inflight_poll);
  }
}

std::shared_ptr<connection> connection::establish(const std::string& path,
                                                  milliseconds timeout,
                                                  const connection* predecessor) {
  const auto deadline = base::deadline_after(timeout);
  const subject about{"connect", path};
  lanes sockets;
  sockets.requests = transport::connect_packet_socket(path, timeout);
  const int socket = sockets.requests.get();

  greet(socket,
        predecessor == nullptr ? wire::session_token{} : predecessor->token_,
        about,
        deadline);
  if (!transport::wait_readable(socket, time_left(deadline))) {
    throw error(errc::timed_out,
                about.operation,
                about.object,
                "the broker does not answer",
                "see whether it is stopped or overloaded, or use a longer timeout");
  }
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  received_packet got = receive_one(socket, buffer);
  if (got.what == received_packet::kind::malformed) {
    throw unexpected_answer(about);
  }
  if (!got.one) {
    throw error(errc::broker_unreachable,
                about.operation,
                about.object,
                "the broker closed the connection at once",
                "see the broker's log");
  }
  if (got.one->descriptors_lost) {
    throw error(errc::too_many_descriptors,
                about.operation,
                about.object,
                "this process has no descriptors left for the broker's state table and event lane",
                "raise its open file limit (ulimit -n)");
  }
  if (const auto* failure = std::get_if<wire::failure>(&got.one->message.body)) {
    throw from_wire(*failure, about);
  }
  const auto* welcome = std::get_if<wire::welcome>(&got.one->message.body);
  if (welcome == nullptr) {
    throw unexpected_answer(about);
  }
  if (welcome->version != wire::protocol_version) {
    throw error(errc::unsupported_version,
                about.operation,
                about.object,
                "the broker speaks protocol version " + std::to_string(welcome->version) +
                    ", this client version " + std::to_string(wire::protocol_version),
                "update whichever is older");
  }
  if (got.one->descriptors.size() != 2) {
    throw unexpected_answer(about);
  }
  const int table_file = got.one->descriptors[0].get();
  sockets.events = std::move(got.one->descriptors[1]);
  broker_info info{path,
                   welcome->domain,
                   welcome->epoch,
                   welcome->version,
                   transport::peer_of(socket).pid,
                   welcome->max_segments,
                   welcome->quota_bytes,
                   welcome->fence,
                   milliseconds(welcome->fence_delay_ms)};

  struct stat table {};
  base::checked("connect", path, "fstat", [&] { return ::fstat(table_file, &table); });
  const auto table_bytes = static_cast<std::size_t>(table.st_size);
  // A table that could shrink would turn a look at it into a SIGBUS.
  const int seals = ::fcntl(table_file, F_GET_SEALS);
  if (seals == -1 || (seals & F_SEAL_SHRINK) == 0 || table_bytes < wire::state_table_words_offset) {
    throw unexpected_answer(about);
  }
  auto mapping = base::map_file("connect", table_file, table_bytes, false);
  const wire::state_table_view view(mapping.get().address, table_bytes, welcome->epoch);
  if (!view) {
    throw unexpected_answer(about);
  }
  std::shared_ptr<connection> made(
      new connection(std::move(sockets), *welcome, std::move(info), std::move(mapping), view));
  made->worker_.start();
  made->thread_ = base::start_thread("gpushm-client", [raw = made.get()] { raw->read_events(); });
  return made;
}

connection::~connection() {
  late_.end();
  try {
    if (!broken()) {
      requests_.queue().clear();  // leases end with the connection
      while (takes_reports_) {
        auto report = reports_.take();
        if (!report || event_queue_.try_send(wire::encode({0, std::move(*report)}), {}) !=
                           transport::send_result::sent) {
          break;
        }
      }
      static_cast<void>(requests_.queue().try_send(wire::encode({0, wire::bye{}}), {}));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_thread();
}

bool connection::broken() const noexcept {
  return broken_.load(std::memory_order_acquire);
}

segment_state connection::state(std::uint32_t slot, gpushm::generation generation) const noexcept {
  if (!alive()) {
    return segment_state::broker_gone;
  }
  return table_.state(slot, generation);
}

error connection::gone(const subject& about) const {
  const std::lock_guard lock(mutex_);
  if (!dropped_because_.empty()) {
    return {
        errc::broker_gone,
        about.operation,
        about.object,
        "the broker at " + info_.socket_path + " has ended this connection: " + dropped_because_,
        "what is mapped stays valid; the next request connects again"};
  }
  if (table_.broker_alive()) {
    return {errc::broker_gone,
            about.operation,
            about.object,
            "the broker at " + info_.socket_path + " has ended this connection",
            "see the broker's log for the reason; what is mapped stays valid; the next request "
            "connects again"};
  }
  return {errc::broker_gone,
          about.operation,
          about.object,
          "the broker at " + info_.socket_path + " is gone",
          "what is mapped stays valid; the next request connects to its successor"};
}

// ---- requests ----

/// One request and its immediate answers: the turn of the request lane, from before it is sent.
class connection::exchange {
 public:
  /// `answers`: how many there will be.
  exchange(connection& of, const subject& about, steady_time deadline, int answers = 1)
      : of_(of),
        about_(about),
        deadline_(deadline),
        turn_(of.requests_.take_turn(deadline)),
        id_(of.next_id_.fetch_add(1, std::memory_order_relaxed)),
        left_(answers) {
    if (of_.broken()) {
      throw of_.gone(about_);
    }
    if (!turn_) {
      throw timed_out(about_);
    }
  }

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  /// Blocks until it is sent.
  void send(wire::body body, std::span<const int> descriptors) {
    const std::vector<std::byte> packet = wire::encode({id_, std::move(body)});
    for (;;) {
      try {
        switch (of_.requests_.queue().try_send(packet, descriptors)) {
          case transport::send_result::sent:
            return;
          case transport::send_result::closed:
            end();
          case transport::send_result::would_block:
            if (!transport::wait_writable(of_.requests_.socket(), time_left(deadline_))) {
              throw error(errc::timed_out,
                          about_.operation,
                          about_.object,
                          "the broker does not read its socket",
                          "see whether it is stopped or overloaded");
            }
        }
      } catch (const error& why) {
        // The kernel counts unread descriptors of a uid; other processes' may be read soon. There
        // is no event for that.
        if (why.code() != errc::too_many_descriptors || descriptors.empty() ||
            std::chrono::steady_clock::now() >= deadline_) {
          throw;
        }
        base::pause_before_retry(inflight_poll);
      }
    }
  }

  /// The next answer to it. What answers requests that nobody waits for any more is dropped.
  [[nodiscard]] answer next() {
    for (;;) {
      received_packet got = turn_.receive(deadline_);
      switch (got.what) {
        case received_packet::kind::nothing:
          of_.abandoned_.fetch_add(left_, std::memory_order_relaxed);
          of_.wake_thread();
          throw timed_out(about_);
        case received_packet::kind::malformed:
          of_.note_dropped({0, errc::protocol_error, "its packet is not a message", {}});
          [[fallthrough]];
        case received_packet::kind::closed:
          of_.broken_.store(true, std::memory_order_release);
          of_.wake_thread();
          throw of_.gone(about_);
        case received_packet::kind::packet:
          break;
      }
      const std::uint64_t id = got.one->message.id;
      if (const auto* failure = std::get_if<wire::failure>(&got.one->message.body);
          failure != nullptr && (id == 0 || failure->code == errc::protocol_error)) {
        of_.note_dropped(*failure);
      }
      answer one = of_.to_answer(std::move(*got.one));
      if (id == id_) {
        --left_;
        return one;
      }
      of_.abandoned_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

 private:
  /// The socket takes nothing any more; the broker may have said why.
  [[noreturn]] void end() {
    try {
      for (;;) {
        static_cast<void>(next());
      }
    } catch (const error& why) {
      if (why.code() == errc::broker_gone) {
        throw;
      }
    }
    of_.broken_.store(true, std::memory_order_release);
    of_.wake_thread();
    throw of_.gone(about_);
  }

  connection& of_;
  const subject& about_;
  steady_time deadline_;
  request_lane::turn turn_;
  std::uint64_t id_;
  int left_;
};

/// Where this process had no room for its descriptors, it is a refusal, and grants nothing.
answer connection::to_answer(packet got) {
  const gpushm::generation generation = granted_by(got.message.body);
  grant granted = generation == 0 ? grant() : grant(*this, generation);
  if (got.descriptors_lost) {
    const auto* opened = std::get_if<wire::opened>(&got.message.body);
    return {wire::failure{opened == nullptr ? 0 : opened->index,
                          errc::too_many_descriptors,
                          "this process has no room for the segment's descriptors",
                          "raise its open file limit (ulimit -n)"}};
  }
  return {std::move(got.message.body), std::move(got.descriptors), std::move(granted)};
}

/// Of what waits to be mapped: with all its descriptors, or none.
void connection::bound_descriptors(answer& got) {
  auto* const opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr || got.descriptors.empty()) {
    return;
  }
  got.held = held_.try_hold(got.descriptors.size());
  if (!got.held) {
    got.descriptors.clear();
    opened->chunk_bytes.clear();
  }
}

answer connection::request(wire::body body,
                           const subject& about,
                           steady_time deadline,
                           std::span<const int> descriptors) {
  exchange asked(*this, about, deadline);
  asked.send(std::move(body), descriptors);
  answer got = asked.next();
  if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
    throw from_wire(*failure, about);
  }
  return got;
}

answer connection::open(wire::open wanted, const subject& about, steady_time deadline) {
  std::optional<exchange> asked(std::in_place, *this, about, deadline);
  late_answers::waiter late(late_, asked->id());
  asked->send(std::move(wanted), {});
  answer got = asked->next();
  asked.reset();
  return std::holds_alternative<wire::waiting>(got.body) ? wait_for_late(late, about, deadline)
                                                         : std::move(got);
}

std::vector<answer> connection::open_many(wire::open_many wanted,
                                          const subject& about,
                                          steady_time deadline) {
  const std::size_t count = wanted.names.size();
  std::vector<answer> all;
  all.reserve(count);
  std::optional<exchange> asked(std::in_place, *this, about, deadline, static_cast<int>(count));
  late_answers::waiter late(late_, asked->id());
  asked->send(std::move(wanted), {});
  for (std::size_t i = 0; i < count; ++i) {
    answer got = asked->next();
    if (!std::holds_alternative<wire::waiting>(got.body)) {
      bound_descriptors(got);
      all.push_back(std::move(got));
    }
  }
  asked.reset();
  while (all.size() < count) {
    all.push_back(wait_for_late(late, about, deadline));
  }
  return all;
}

answer connection::wait_for_late(late_answers::waiter& late,
                                 const subject& about,
                                 steady_time deadline) {
  auto got = late.next(deadline);
  if (!got) {
    throw broken() ? gone(about) : timed_out(about);
  }
  return std::move(*got);
}

void connection::release(gpushm::generation generation,
                         std::uint32_t count,
                         bool never_mapped) noexcept {
  try {
    if (!broken() && requests_.queue().release(generation, count, never_mapped)) {
      wake_thread();
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

// ---- what comes of a connection that the broker has ended ----

void connection::keep(std::span<const std::pair<gpushm::generation, std::uint32_t>> what,
                      steady_time deadline) {
  do {
    const auto now = what.subspan(0, std::min(what.size(), wire::max_keep));
    what = what.subspan(now.size());
    wire::keep part{{}, {}, !what.empty()};
    for (const auto& [generation, count] : now) {
      part.generations.push_back(generation);
      part.counts.push_back(count);
    }
    static_cast<void>(request(std::move(part), {"connect", info_.socket_path}, deadline));
  } while (!what.empty());
}

void connection::set_successor(std::shared_ptr<connection> heir) {
  successor_ = std::move(heir);
  current_successor_.store(successor_.get(), std::memory_order_release);
}

connection& connection::current() noexcept {
  connection* at = this;
  while (connection* const next = at->current_successor_.load(std::memory_order_acquire)) {
    at = next;
  }
  return *at;
}

// ---- subscriptions ----

std::uint64_t connection::subscribe(const std::string& prefix,
                                    event_sink& sink,
                                    steady_time deadline) {
  const subject about{"subscribe", prefix};
  exchange asked(*this, about, deadline);
  const std::uint64_t id = asked.id();
  {
    const std::lock_guard lock(mutex_);
    sinks_.emplace(id, &sink);
  }
  try {
    asked.send(wire::subscribe{prefix}, {});
    const answer got = asked.next();
    if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
      throw from_wire(*failure, about);
    }
    if (!std::holds_alternative<wire::subscribed>(got.body)) {
      throw unexpected_answer(about);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    sinks_.erase(id);
    throw;
  }
  return id;
}

void connection::unsubscribe(std::uint64_t subscription) noexcept {
  {
    const std::lock_guard lock(mutex_);
    sinks_.erase(subscription);
  }
  try {  // nobody waits for the answer
    const std::uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
    if (!broken()) {
      abandoned_.fetch_add(1, std::memory_order_relaxed);
      static_cast<void>(
          requests_.queue().push(wire::encode({id, wire::unsubscribe{subscription}})));
      wake_thread();
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

}  // namespace gpushm::detail
