// SPDX-License-Identifier: Apache-2.0
#include "client/connection.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

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
  if (!transport::wait_readable(made->socket_.get(), time_left(deadline))) {
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
  made->takes_reports_ = welcome->takes_reports;

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
      send_report();
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
        if (!transport::wait_writable(socket_.get(), time_left(deadline))) {
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

}  // namespace gpushm::detail
