// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/worker_pool.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>

#include "base/files/syscall.hpp"
#include "base/process/own_table.hpp"
#include "base/process/thread.hpp"
#include "broker/descriptors/chunk_kinds.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/packet_buffer.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::broker_detail {

namespace {

/// Upper bound of threads that may be blocked concurrently, each by a different principal.
constexpr std::size_t max_threads = 64;
/// An idle thread exits after this time.
constexpr std::chrono::seconds idle_time{10};
/// How long a packet waits until the number of descriptors in flight permits sending it.
constexpr std::chrono::seconds send_timeout{5};
constexpr std::chrono::milliseconds retry_pause{2};
/// How often a thread that waits for the broker looks whether that has stopped.
constexpr std::chrono::milliseconds stop_check{100};

/// Returns how many numbers of this table are for descriptors of packets. The others are for
/// sockets.
std::uint64_t numbers_for_packets() {
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::max<std::uint64_t>(is_known ? limit.rlim_cur / 2 : 0, wire::max_batch);
}

template <typename Work>
void guarded(Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception& why) {
    succession::log_about_members(log_level::warning, why.what());
  }
}

}  // namespace

void packet_gate::wait(const std::atomic<bool>& stopped) {
  std::unique_lock lock(mutex_);
  while (is_open_ && !stopped.load(std::memory_order_relaxed)) {
    changed_.wait_for(lock, stop_check);
  }
}

received_packet::received_packet() : open(std::make_shared<packet_gate>()) {}
received_packet::~received_packet() {
  open->close();
}

/// Numbers for the descriptors of a packet, beside those of sockets: a socket that arrives when
/// none is left is lost. Waits until others have returned theirs.
class worker_pool::packet_room {
 public:
  explicit packet_room(worker_pool& pool) : pool_(pool) {
    const std::uint64_t most = numbers_for_packets();
    std::unique_lock lock(pool_.mutex_);
    while (pool_.held_ + taken_ > most && !pool_.stopped_) {
      pool_.returned_.wait_for(lock, stop_check);
    }
    pool_.held_ += taken_;
  }
  packet_room(const packet_room&) = delete;
  packet_room& operator=(const packet_room&) = delete;
  ~packet_room() { keep(0); }
  /// Returns the others. Precondition: no more than it has.
  void keep(std::uint64_t count) {
    const std::lock_guard lock(pool_.mutex_);
    pool_.held_ -= taken_ - count;
    taken_ = count;
    pool_.returned_.notify_all();
  }

 private:
  worker_pool& pool_;
  std::uint64_t taken_ = wire::max_batch;
};

worker_pool::~worker_pool() {
  const base::own_table_scope own;
  worker_end_.reset();
  shelf_.reset();
}

void worker_pool::run() {
  while (auto next = receive_job()) {
    try {
      give(std::move(*next));
    } catch (const std::exception& why) {
      succession::log_about_members(log_level::warning, why.what());
    }
  }
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

std::optional<worker_pool::task> worker_pool::receive_job() {
  address_text address{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec part{address.data(), address.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const auto size = base::retry([&] {
    const base::own_table_scope own;
    return ::recvmsg(worker_end_.get(), &header, MSG_CMSG_CLOEXEC);
  });
  if (size != static_cast<ssize_t>(address.size())) {
    return std::nullopt;
  }
  int fd = -1;
  if (const cmsghdr* entry = CMSG_FIRSTHDR(&header);
      entry != nullptr && entry->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fd, CMSG_DATA(entry), sizeof fd);
  }
  return task{object_at<socket_job>(address), base::unique_fd(fd)};
}

void worker_pool::carry(const task& task,
                        std::vector<base::unique_fd>& foreign,
                        packet_room& room) {
  std::vector<base::unique_fd> chunks;
  auto created = fetch(task, chunks, foreign);
  room.keep(chunks.size() + foreign.size());
  const std::shared_ptr<packet_gate> open = created->open;
  // The packet transfers copies to the broker; these are closed afterwards.
  hand_over(std::move(created), chunks);
  open->wait(stopped_);
}

std::unique_ptr<received_packet> worker_pool::fetch(const task& task,
                                                    std::vector<base::unique_fd>& chunks,
                                                    std::vector<base::unique_fd>& foreign) {
  auto created = std::make_unique<received_packet>();
  created->session = task.job->session;
  if (!task.socket) {
    return created;  // no descriptor was left for it: the packet is fetched again
  }
  const wire::packet_buffer buffer;
  try {
    auto got = transport::peek_packet(task.socket.get(), buffer.bytes());
    created->status = got.status;
    // Nothing here would keep its descriptors open when the broker removes the packet.
    created->failed = got.status == transport::receive_status::descriptors_lost;
    created->packet.assign(got.packet.begin(), got.packet.end());
    const bool is_as_announced = got.descriptors.size() == task.job->taken;
    for (auto& fd : got.descriptors) {
      if (is_as_announced && is_of_member_kind(fd.get())) {
        chunks.push_back(std::move(fd));
      } else {
        foreign.push_back(std::move(fd));
      }
    }
    created->foreign = foreign.size();
    keep(*created, chunks);
  } catch (const error& why) {
    succession::log_about_members(log_level::warning, why.what());
    created->failed = true;
  }
  return created;
}

void worker_pool::keep(received_packet& created, std::vector<base::unique_fd>& chunks) {
  const std::lock_guard lock(keeping_);
  if (!shelf_) {
    return;
  }
  try {
    for (const base::unique_fd& each : chunks) {
      created.kept.push_back(shelf_->put(each.get()));
    }
  } catch (const error& why) {
    created.is_keeper_behind = why.code() == errc::timed_out;
    if (!created.is_keeper_behind) {
      succession::log_about_members(log_level::warning, why.what());
    }
    created.status = transport::receive_status::descriptors_lost;
  }
}

void worker_pool::hand_over(std::unique_ptr<received_packet> packet,
                            const std::vector<base::unique_fd>& chunks) {
  std::vector<int> numbers(
      packet->status == transport::receive_status::descriptors_lost ? 0 : chunks.size());
  std::transform(chunks.begin(),
                 chunks.begin() + static_cast<std::ptrdiff_t>(numbers.size()),
                 numbers.begin(),
                 [](const auto& fd) { return fd.get(); });
  const address_text text = text_of(packet.get());
  using clock = std::chrono::steady_clock;
  const auto give_up = clock::now() + send_timeout;
  for (;;) {
    const std::lock_guard lock(sending_);
    if (!transport::wait_writable(worker_end_.get(), std::chrono::hours(1))) {
      continue;
    }
    try {
      switch (transport::send_packet(worker_end_.get(), text, numbers)) {
        case transport::send_result::sent:
          static_cast<void>(packet.release());
          return;
        case transport::send_result::closed:
          return;
        case transport::send_result::would_block:
          break;
      }
    } catch (const error& why) {
      // Too many are in flight for this uid, possibly sent by another program.
      if (why.code() != errc::too_many_descriptors || clock::now() >= give_up) {
        throw;
      }
      base::pause_before_retry(retry_pause);
    }
  }
}

void worker_pool::take_from_keeper(records::descriptor_id number) {
  if (number == 0) {
    return;
  }
  succession::retry_with_keeper(
      [&] {
        const std::lock_guard lock(keeping_);
        if (shelf_) {
          shelf_->remove_and_wait(std::span(&number, 1));
        }
      },
      [&] { return stopped_.load(std::memory_order_relaxed); });
}

void worker_pool::report_closed(std::uint64_t number) {
  auto report = std::make_unique<received_packet>();
  report->closed = number;
  hand_over(std::move(report), {});
}

void worker_pool::give(task next) {
  const std::lock_guard lock(mutex_);
  auto& queue = queues_[next.job->principal];
  queue.push_back(std::move(next));
  if (queue.size() == 1) {
    runnable_.push_back(queue.front().job->principal);
  }
  if (idle_ < runnable_.size() && threads_ < max_threads) {
    base::start_thread("gpushm-receiver", [self = shared_from_this()] { self->work(); }).detach();
    ++threads_;
  }
  changed_.notify_one();
}

void worker_pool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool woken =
        changed_.wait_for(lock, idle_time, [&] { return stopped_ || !runnable_.empty(); });
    --idle_;
    if (!woken || (stopped_ && runnable_.empty())) {
      --threads_;
      return;
    }
    const std::string principal = std::move(runnable_.front());
    runnable_.pop_front();
    // The task stays at the head of its queue, which blocks other tasks of that principal.
    task& current = queues_.at(principal).front();
    lock.unlock();
    perform(current);
    lock.lock();
    auto& queue = queues_.at(principal);
    queue.pop_front();
    if (queue.empty()) {
      queues_.erase(principal);
    } else {
      runnable_.push_back(principal);
    }
  }
}

void worker_pool::perform(task& task) noexcept {
  const base::own_table_scope own;
  const std::uint64_t closes = task.job->closes;
  // cppcheck-suppress throwInNoexceptFunction ; `guarded` catches it
  guarded([&] {
    if (closes != 0) {
      task.job->broker_copy->wait(stopped_);
      take_from_keeper(task.job->kept);
      return;
    }
    packet_room room(*this);
    std::vector<base::unique_fd> foreign;  // closing them may block
    carry(task, foreign, room);
  });
  task.socket.reset();  // may block
  if (closes != 0) {
    guarded([&] { report_closed(closes); });
  }
}

}  // namespace gpushm::broker_detail
