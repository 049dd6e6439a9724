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
/// open, because those that are being imported, and the user's own, need room too.
std::size_t most_held_descriptors() {
  rlimit limit{};
  constexpr rlim_t fewest = 64;
  constexpr rlim_t most = 16'384;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fewest;
  }
  return std::clamp(limit.rlim_cur / 4, fewest, most);
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

connection::connection(const std::string& path, milliseconds timeout)
    : socket_(transport::connect_packet_socket(path, timeout)),
      wake_(base::guarded_fd::open([&] {
        return base::checked(
            "connect", path, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
      })),
      buffer_(wire::max_packet_bytes),
      most_held_(most_held_descriptors()) {}

/// Sends the hello, with what shows the end of this process.
void connection::greet(const wire::session_token& resume,
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
  while (!try_greet(hello, proof.descriptors(), about, deadline)) {
    base::pause_before_retry(inflight_poll);
  }
}

/// False: the kernel takes no more descriptors now.
bool connection::try_greet(std::span<const std::byte> hello,
                           std::span<const int> descriptors,
                           const subject& about,
                           steady_time deadline) {
  try {
    if (transport::send_packet(socket_.get(), hello, descriptors) ==
        transport::send_result::closed) {
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

std::shared_ptr<connection> connection::establish(const std::string& path,
                                                  milliseconds timeout,
                                                  const connection* predecessor) {
  const auto deadline = base::deadline_after(timeout);
  const subject about{"connect", path};
  std::shared_ptr<connection> made(new connection(path, timeout));

  made->greet(
      predecessor == nullptr ? wire::session_token{} : predecessor->token_, about, deadline);
  if (!transport::wait_readable(made->socket_.get(), time_left(deadline))) {
    throw error(errc::timed_out,
                about.operation,
                about.object,
                "the broker does not answer",
                "see whether it is stopped or overloaded, or use a longer timeout");
  }
  auto got = transport::receive_guarded(made->socket_.get(), made->buffer_);
  if (got.status == transport::receive_status::descriptors_lost) {
    throw error(errc::too_many_descriptors,
                about.operation,
                about.object,
                "this process has no descriptor left for the broker's state table",
                "raise its open file limit (ulimit -n)");
  }
  if (got.status != transport::receive_status::packet) {
    throw error(errc::broker_unreachable,
                about.operation,
                about.object,
                "the broker closed the connection at once",
                "see the broker's log");
  }
  const auto message = wire::decode(got.packet);
  if (!message) {
    throw unexpected_answer(about);
  }
  if (const auto* failure = std::get_if<wire::failure>(&message->body)) {
    throw from_wire(*failure, about);
  }
  const auto* welcome = std::get_if<wire::welcome>(&message->body);
  if (welcome == nullptr || got.descriptors.size() != 1) {
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
  made->info_ = {path,
                 welcome->domain,
                 welcome->epoch,
                 welcome->version,
                 transport::peer_of(made->socket_.get()).pid,
                 welcome->max_segments,
                 welcome->quota_bytes,
                 welcome->fence,
                 milliseconds(welcome->fence_delay_ms)};
  made->takes_reports_ = welcome->takes_reports;
  made->token_ = welcome->token;
  made->resumed_ = welcome->resumed;

  struct stat table {};
  base::checked(
      "connect", path, "fstat", [&] { return ::fstat(got.descriptors.front().get(), &table); });
  const auto table_bytes = static_cast<std::size_t>(table.st_size);
  // A table that could shrink would turn a look at it into a SIGBUS.
  const int seals = ::fcntl(got.descriptors.front().get(), F_GET_SEALS);
  if (seals == -1 || (seals & F_SEAL_SHRINK) == 0 || table_bytes < wire::state_table_words_offset) {
    throw unexpected_answer(about);
  }
  made->table_mapping_ =
      base::map_file("connect", got.descriptors.front().get(), table_bytes, false);
  made->table_ =
      wire::state_table_view(made->table_mapping_.get().address, table_bytes, welcome->epoch);
  if (!made->table_) {
    throw unexpected_answer(about);
  }
  made->thread_ =
      base::start_thread("gpushm-client", [raw = made.get()] { raw->read_until_stopped(); });
  return made;
}

connection::~connection() {
  try {
    if (!broken()) {
      queue_.clear();  // leases end with the connection
      while (takes_reports_) {
        auto report = reports_.take();
        if (!report || queue_.try_send(wire::encode({0, std::move(*report)}), {}) !=
                           transport::send_result::sent) {
          break;
        }
      }
      static_cast<void>(queue_.try_send(wire::encode({0, wire::bye{}}), {}));
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

void connection::wake_thread() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(base::retry([&] { return ::write(wake_.get(), &one, sizeof one); }));
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

// ---- sending ----

/// Blocks no other sender: each waits for room in the socket by itself, until its own deadline.
void connection::send(std::span<const std::byte> packet,
                      std::span<const int> descriptors,
                      const subject& about,
                      steady_time deadline) {
  for (;;) {
    try {
      switch (queue_.try_send(packet, descriptors)) {
        case transport::send_result::sent:
          return;
        case transport::send_result::closed:
          throw hung_up(about);
        case transport::send_result::would_block:
          if (!transport::wait_writable(socket_.get(), time_left(deadline))) {
            throw error(errc::timed_out,
                        about.operation,
                        about.object,
                        "the broker does not read its socket",
                        "see whether it is stopped or overloaded");
          }
      }
    } catch (const error& why) {
      // The kernel counts unread descriptors of a uid; other processes' may be read soon. There is
      // no event for that.
      if (why.code() != errc::too_many_descriptors || descriptors.empty() ||
          std::chrono::steady_clock::now() >= deadline) {
        throw;
      }
      base::pause_before_retry(inflight_poll);
    }
  }
}

/// The socket takes nothing any more.
error connection::hung_up(const subject& about) {
  try {  // the broker may have said why
    static_cast<void>(read_available(nullptr));
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
  // Subscriptions hear of the end from whoever reads it: what was sent before comes first.
  broken_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  return gone(about);
}

/// What nobody waits for. The connection's thread sends it when the socket does not take it now.
void connection::push(const wire::message& message) noexcept {
  try {
    if (!broken() && queue_.push(wire::encode(message))) {
      wake_thread();
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

connection::call::call(connection& owner, std::uint64_t id, const subject& about)
    : owner_(owner), id_(id), operation_(about.operation), object_(about.object) {}

connection::call::~call() {
  // Answers that nobody took: their leases go back.
  std::shared_ptr<pending> waiting;
  {
    const std::lock_guard lock(owner_.mutex_);
    const auto at = owner_.pending_.find(id_);
    if (at == owner_.pending_.end()) {
      return;
    }
    waiting = std::move(at->second);
    owner_.pending_.erase(at);
    for (const answer& left : waiting->answers) {
      owner_.took(left);
    }
  }
  for (const answer& left : waiting->answers) {
    if (const auto* opened = std::get_if<wire::opened>(&left.body)) {
      owner_.release(opened->segment.generation, 1, true);
    } else if (const auto* reserved = std::get_if<wire::reserved>(&left.body)) {
      owner_.release(reserved->generation, 1, true);
    }
  }
}

answer connection::call::next(steady_time deadline) {
  answer got = next_raw(deadline);
  if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
    throw from_wire(*failure, {operation_, object_});
  }
  return got;
}

answer connection::call::next_raw(steady_time deadline) {
  const subject about{operation_, object_};
  std::unique_lock lock(owner_.mutex_);
  const std::shared_ptr<pending> waiting = owner_.pending_.at(id_);
  for (;;) {
    if (!waiting->answers.empty()) {
      answer first = std::move(waiting->answers.front());
      waiting->answers.pop_front();
      owner_.took(first);
      owner_.resume_reading();  // it may have been this caller's turn to read
      return first;
    }
    if (owner_.broken()) {
      throw owner_.gone(about);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      owner_.resume_reading();
      throw error(errc::timed_out,
                  about.operation,
                  about.object,
                  "the broker did not answer in time",
                  "see whether it is stopped or overloaded, or use a longer request timeout");
    }
    if (owner_.caller_reads_ || owner_.holds_too_much()) {
      waiting->waited_for = true;
      waiting->arrived.wait_until(lock, deadline);
      waiting->waited_for = false;
      continue;
    }
    owner_.caller_reads_ = true;
    lock.unlock();
    owner_.read_for_everybody(*waiting, deadline);
    lock.lock();
    owner_.stop_reading();
  }
}

std::unique_ptr<connection::call> connection::start(wire::body body,
                                                    std::span<const int> descriptors,
                                                    const subject& about,
                                                    steady_time deadline) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (broken()) {
      throw gone(about);
    }
    id = next_id_++;
    pending_.emplace(id, std::make_shared<pending>());
  }
  std::unique_ptr<call> started(new call(*this, id, about));
  send(wire::encode({id, std::move(body)}), descriptors, about, deadline);
  return started;
}

answer connection::request(wire::body body,
                           const subject& about,
                           steady_time deadline,
                           std::span<const int> descriptors) {
  return start(std::move(body), descriptors, about, deadline)->next(deadline);
}

void connection::release(gpushm::generation generation,
                         std::uint32_t count,
                         bool never_mapped) noexcept {
  try {
    if (!broken() && queue_.release(generation, count, never_mapped)) {
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
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (broken()) {
      throw gone(about);
    }
    id = next_id_++;
    pending_.emplace(id, std::make_shared<pending>());
    sinks_.emplace(id, &sink);
  }
  const std::unique_ptr<call> started(new call(*this, id, about));
  try {
    send(wire::encode({id, wire::subscribe{prefix}}), {}, about, deadline);
    static_cast<void>(started->next(deadline));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    sinks_.erase(id);
    throw;
  }
  return id;
}

void connection::unsubscribe(std::uint64_t subscription) noexcept {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    sinks_.erase(subscription);
    id = next_id_++;  // nobody waits for the answer
  }
  push({id, wire::unsubscribe{subscription}});
}

}  // namespace gpushm::detail
