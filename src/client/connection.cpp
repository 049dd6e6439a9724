// SPDX-License-Identifier: Apache-2.0
#include "client/connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <array>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/syscall.hpp"
#include "transport/credentials.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::detail {

namespace {

using std::chrono::milliseconds;

milliseconds until(steady_time deadline) {
  const auto rest = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(rest, milliseconds(0));
}

/// How long a caller asks the socket again and again before it sleeps: an answer usually takes less
/// than twice the time it takes to wake a thread.
constexpr std::chrono::microseconds spin{30};
/// How long the connection's thread leaves the socket to a caller before it looks again.
constexpr milliseconds look_again{1};

error from_wire(const wire::failure& failure, const subject& about) {
  return {failure.code, about.operation, about.object, failure.cause, failure.next_step};
}

}  // namespace

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
      closes_in_child_(socket_.get()),
      wake_(base::checked(
          "connect", path, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      buffer_(wire::max_packet_bytes) {}

std::shared_ptr<connection> connection::establish(const std::string& path, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const subject about{"connect", path};
  std::shared_ptr<connection> made(new connection(path, timeout));

  const auto self = base::this_process();
  const auto hello = wire::encode(
      {0, wire::hello{wire::protocol_version, self.boot_id, self.pid_namespace, self.pid}});
  if (transport::send_packet(made->socket_.get(), hello, {}) == transport::send_result::closed) {
    // It may have said why before it closed: that is read below.
    base::log(log_level::debug, "the broker closed the connection before the hello");
  }
  if (!transport::wait_readable(made->socket_.get(), until(deadline))) {
    throw error(errc::timed_out,
                about.operation,
                about.object,
                "the broker does not answer",
                "see whether it is stopped or overloaded, or use a longer timeout");
  }
  auto got = transport::receive_packet(made->socket_.get(), made->buffer_);
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
                 welcome->quota_bytes};

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
  made->thread_ = std::jthread([raw = made.get()] { raw->read_until_stopped(); });
  return made;
}

connection::~connection() {
  try {
    if (!broken()) {
      const auto packet = wire::encode({0, wire::bye{}});
      static_cast<void>(transport::send_packet(socket_.get(), packet, {}));
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
  return {errc::broker_gone,
          about.operation,
          about.object,
          "the broker at " + info_.socket_path + " is gone",
          "what is mapped stays valid; the next request connects to its successor"};
}

// ---- sending ----

void connection::send(std::span<const std::byte> packet,
                      std::span<const int> descriptors,
                      const subject& about,
                      steady_time deadline) {
  const std::lock_guard lock(send_mutex_);
  for (;;) {
    switch (transport::send_packet(socket_.get(), packet, descriptors)) {
      case transport::send_result::sent:
        return;
      case transport::send_result::closed:
        // Subscriptions hear of it from whoever reads: what was sent before comes first.
        broken_.store(true, std::memory_order_release);
        throw gone(about);
      case transport::send_result::would_block:
        if (!transport::wait_writable(socket_.get(), until(deadline))) {
          throw error(errc::timed_out,
                      about.operation,
                      about.object,
                      "the broker does not read its socket",
                      "see whether it is stopped or overloaded");
        }
    }
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
  }
  for (const answer& left : waiting->answers) {
    if (const auto* opened = std::get_if<wire::opened>(&left.body)) {
      owner_.release(opened->segment.generation, 1);
    } else if (const auto* reserved = std::get_if<wire::reserved>(&left.body)) {
      owner_.release(reserved->generation, 1);
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
      return first;
    }
    if (owner_.broken()) {
      throw owner_.gone(about);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw error(errc::timed_out,
                  about.operation,
                  about.object,
                  "the broker did not answer in time",
                  "see whether it is stopped or overloaded, or use a longer request timeout");
    }
    if (owner_.caller_reads_) {
      waiting->waited_for = true;
      waiting->arrived.wait_until(lock, deadline);
      waiting->waited_for = false;
      continue;
    }
    owner_.caller_reads_ = true;
    lock.unlock();
    owner_.read_for_everybody(*waiting, deadline);
    lock.lock();
    owner_.caller_reads_ = false;
    owner_.hand_over_reading();
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

void connection::release(gpushm::generation generation, std::uint32_t count) noexcept {
  try {
    if (!broken()) {
      send(wire::encode({0, wire::release{generation, count}}),
           {},
           {"release", {}},
           std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
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
  {
    const std::lock_guard lock(mutex_);
    sinks_.erase(subscription);
  }
  try {
    if (!broken()) {
      static_cast<void>(start(wire::unsubscribe{subscription},
                              {},
                              {"unsubscribe", {}},
                              std::chrono::steady_clock::now() + std::chrono::seconds(1)));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

// ---- reading ----

/// Returns when `wanted` has an answer, at `deadline`, or when the connection is broken.
void connection::read_for_everybody(const pending& wanted, steady_time deadline) {
  const auto stop_spinning = std::chrono::steady_clock::now() + spin;
  bool alive = true;
  try {
    for (;;) {
      alive = read_available();
      {
        const std::lock_guard lock(mutex_);
        if (!alive || !wanted.answers.empty()) {
          break;
        }
      }
      const auto now = std::chrono::steady_clock::now();
      if (now < stop_spinning) {
        continue;
      }
      if (now >= deadline || !transport::wait_readable(socket_.get(), until(deadline))) {
        return;
      }
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    alive = false;
  }
  if (!alive) {
    break_down();
  }
}

/// One of those who wait becomes the reader. With `mutex_` held.
void connection::hand_over_reading() {
  for (const auto& [id, waiting] : pending_) {
    if (waiting->waited_for) {
      waiting->arrived.notify_one();
      return;
    }
  }
}

void connection::read_until_stopped() {
  for (;;) {
    std::array<pollfd, 2> waits{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    {
      // Somebody who waits for an answer reads. Look again soon, as long as nobody says when that
      // ends.
      const std::lock_guard lock(mutex_);
      if (torn_down_) {
        break;
      }
      if (caller_reads_) {
        waits[0].fd = -1;
      }
    }
    const bool only_wake = waits[0].fd == -1;
    const int timeout = only_wake ? static_cast<int>(look_again.count()) : -1;
    const int count = ::poll(waits.data(), waits.size(), timeout);
    if (count < 0 && errno != EINTR) {
      break;
    }
    if (count > 0 && waits[1].revents != 0) {
      std::uint64_t drained = 0;
      static_cast<void>(base::retry([&] { return ::read(wake_.get(), &drained, sizeof drained); }));
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
          return;
        }
      }
      tell_listener();
      continue;
    }
    if (count <= 0 || waits[0].revents == 0 || caller_has_begun()) {
      continue;
    }
    try {
      if (!read_available()) {
        break;
      }
    } catch (const std::exception& why) {
      base::log(log_level::warning, why.what());
      break;
    }
  }
  break_down();
  tell_listener();
}

bool connection::caller_has_begun() {
  const std::lock_guard lock(mutex_);
  return caller_reads_;
}

/// Receives and dispatches what is there. False at the end of the connection.
bool connection::read_available() {
  const std::lock_guard lock(receive_mutex_);
  for (;;) {
    auto got = transport::receive_packet(socket_.get(), buffer_);
    switch (got.status) {
      case transport::receive_status::would_block:
        return true;
      case transport::receive_status::closed:
      case transport::receive_status::truncated:
        return false;
      case transport::receive_status::packet:
      case transport::receive_status::descriptors_lost: {
        auto message = wire::decode(got.packet);
        if (!message) {
          base::log(log_level::warning, "the broker sent a packet that is no message");
          return false;
        }
        dispatch(std::move(*message),
                 std::move(got.descriptors),
                 got.status == transport::receive_status::descriptors_lost);
      }
    }
  }
}

void connection::dispatch(wire::message message,
                          std::vector<base::unique_fd> descriptors,
                          bool lost) {
  std::optional<gpushm::generation> granted;
  if (const auto* opened = std::get_if<wire::opened>(&message.body)) {
    granted = opened->segment.generation;
  } else if (const auto* reserved = std::get_if<wire::reserved>(&message.body)) {
    granted = reserved->generation;
  }
  if (lost) {
    if (granted) {
      release(*std::exchange(granted, std::nullopt), 1);
    }
    message.body = wire::failure{0,
                                 errc::too_many_descriptors,
                                 "this process has no room for the segment's descriptors",
                                 "raise its open file limit (ulimit -n)"};
  }
  if (const auto* asked = std::get_if<wire::confirm>(&message.body)) {
    answer_confirm(message.id, asked->generation);
    return;
  }
  std::unique_lock lock(mutex_);
  if (auto* what = std::get_if<wire::event>(&message.body)) {
    if (message.id == 0) {  // of a lease, not of a subscription; a resync has generation 0
      lost_.push_back(what->generation);
      lock.unlock();
      wake_thread();
      return;
    }
    const auto sink = sinks_.find(message.id);
    if (sink != sinks_.end()) {
      sink->second->deliver(
          {what->kind, std::move(what->name), what->generation, what->leases, what->peer_pid});
    }
    return;
  }
  const auto at = pending_.find(message.id);
  if (at != pending_.end()) {
    at->second->answers.push_back({std::move(message.body), std::move(descriptors)});
    at->second->arrived.notify_one();
    return;
  }
  lock.unlock();
  if (granted) {
    release(*granted, 1);  // whoever asked has given up
  }
}

// ---- leases and shares ----

void connection::set_lease_listener(lease_listener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = listener;
}

/// On the connection's thread: ending mappings takes as long as the driver does.
void connection::tell_listener() noexcept {
  const std::lock_guard listener_lock(listener_mutex_);
  std::vector<gpushm::generation> lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(lost_);
  }
  if (listener_ == nullptr) {
    return;
  }
  for (const gpushm::generation generation : lost) {
    listener_->lease_lost(*this, generation);
  }
  if (broken()) {
    listener_->lease_lost(*this, 0);
  }
}

void connection::answer_for(gpushm::generation generation, confirm_answer answer) {
  auto kept = std::make_shared<const confirm_answer>(std::move(answer));
  const std::lock_guard lock(mutex_);
  answers_[generation] = std::move(kept);
}

void connection::stop_answering(gpushm::generation generation) noexcept {
  const std::lock_guard lock(mutex_);
  answers_.erase(generation);
}

void connection::answer_confirm(std::uint64_t id, gpushm::generation generation) noexcept {
  try {
    std::shared_ptr<const confirm_answer> answer;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = answers_.find(generation); at != answers_.end()) {
        answer = at->second;
      }
    }
    wire::confirmed said{generation, wire::verdict::not_shared};
    if (answer) {
      said.verdict = (*answer)() ? wire::verdict::unchanged : wire::verdict::changed;
    }
    send(wire::encode({id, said}),
         {},
         {"confirm", {}},
         std::chrono::steady_clock::now() + std::chrono::seconds(1));
  } catch (const std::exception& why) {  // the broker's deadline tells who waits
    base::log(log_level::warning, why.what());
  }
}

void connection::break_down() noexcept {
  const std::lock_guard lock(mutex_);
  broken_.store(true, std::memory_order_release);
  if (std::exchange(torn_down_, true)) {
    return;
  }
  for (const auto& [id, waiting] : pending_) {
    waiting->arrived.notify_all();
  }
  for (const auto& [id, sink] : sinks_) {
    sink->broker_gone();
  }
}

}  // namespace gpushm::detail
