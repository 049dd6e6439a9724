// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptor_receiver.hpp"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/descriptor_numbers.hpp"
#include "base/own_table.hpp"
#include "base/syscall.hpp"
#include "base/thread.hpp"
#include "broker/chunk_kinds.hpp"
#include "broker/member_log.hpp"
#include "broker/own_table.hpp"
#include "core/scheduling.hpp"
#include "transport/unread.hpp"
#include "wire/messages.hpp"
#include "wire/packet_buffer.hpp"

namespace gpushm::broker_detail {

namespace {

/// Message between the descriptor tables: the address of an object of this process, whose ownership
/// it transfers.
using address_text = std::array<std::byte, sizeof(void*)>;

template <typename T>
address_text text_of(T* address) {
  address->complete.store(true, std::memory_order_release);
  address_text text{};
  std::memcpy(text.data(), &address, text.size());
  return text;
}

template <typename T>
std::unique_ptr<T> object_at(const address_text& text) {
  T* address = nullptr;
  std::memcpy(&address, text.data(), text.size());
  static_cast<void>(address->complete.load(std::memory_order_acquire));
  return std::unique_ptr<T>(address);
}

/// Upper bound of threads that may be blocked concurrently, each by a different principal.
constexpr std::size_t max_threads = 64;
/// Numbers of the table that they share, before it grows.
constexpr std::size_t first_numbers = 4'096;
/// An idle thread exits after this time.
constexpr std::chrono::seconds idle_time{10};
/// How long a packet waits until the number of descriptors in flight permits sending it.
constexpr std::chrono::seconds send_timeout{5};
constexpr std::chrono::milliseconds retry_pause{2};
/// How often a thread that waits for the broker looks whether that has stopped.
constexpr std::chrono::milliseconds stop_check{100};
/// Packets without descriptors that are read from a socket before it is closed.
constexpr int max_drained = 1024;

/// Of this table's numbers, for descriptors of packets: the others are for sockets.
std::uint64_t numbers_for_packets() {
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::max<std::uint64_t>(is_known ? limit.rlim_cur / 2 : 0, wire::max_batch);
}

}  // namespace

/// Holds a thread of the pool until the broker is done. Thread-safety: shared objects: safe.
class descriptor_receiver::gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    changed_.notify_all();
  }
  /// Blocks until it is closed; no longer than `stop_check` once `stopped`.
  void wait(const std::atomic<bool>& stopped) {
    std::unique_lock lock(mutex_);
    while (is_open_ && !stopped.load(std::memory_order_relaxed)) {
      changed_.wait_for(lock, stop_check);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

descriptor_receiver::received_packet::received_packet() : open(std::make_shared<gate>()) {}
descriptor_receiver::received_packet::~received_packet() {
  open->close();
}

bool drain(int socket) noexcept {
  for (int i = 0; i < max_drained; ++i) {
    switch (transport::first_unread(socket)) {
      case transport::unread::descriptors:
        return false;
      case transport::unread::nothing:
      case transport::unread::unknown:
        return true;
      case transport::unread::plain:
        break;
    }
    msghdr header{};  // no room: the packet is dropped. Not recv: the program refuses recvfrom
    static_cast<void>(base::retry([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT); }));
  }
  return false;
}

/// A job for the worker pool, sent with its socket. It is on this process's heap; only its address
/// is sent.
struct descriptor_receiver::job {
  /// Receives a packet.
  job(std::uint64_t number, std::string whose, std::size_t count)
      : session(number), principal(std::move(whose)), taken(count) {}
  /// Closes the socket.
  job(std::string whose,
      std::shared_ptr<gate> copy_open,
      records::descriptor_id id,
      std::uint64_t number)
      : principal(std::move(whose)), broker_copy(std::move(copy_open)), kept(id), closes(number) {}
  std::uint64_t session = 0;
  std::string principal;
  std::size_t taken = 0;  ///< descriptors that the packet's request takes
  /// If set, only close the socket once the broker has closed its copy: only the last close may
  /// block.
  std::shared_ptr<gate> broker_copy;
  records::descriptor_id kept = 0;     ///< the keeper has a copy
  std::uint64_t closes = 0;            ///< the number that reports the close
  std::atomic<bool> complete = false;  ///< as in `received_packet`
};

/// The threads with the other descriptor table. They exit when the broker's end of the socket pair
/// is closed; blocked threads exit once they are unblocked.
class descriptor_receiver::worker_pool
    : public std::enable_shared_from_this<descriptor_receiver::worker_pool> {
 public:
  explicit worker_pool(int worker_end) : worker_end_(worker_end) {}
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  ~worker_pool() {
    const base::own_table_scope own;
    worker_end_.reset();
    shelf_.reset();
  }

  /// Call first, on the first thread.
  void set_shelf(std::optional<descriptor_shelf> shelf) { shelf_ = std::move(shelf); }

  /// Distributes jobs. Runs on the first thread.
  void run() {
    while (auto next = receive_job()) {
      try {
        give(std::move(*next));
      } catch (const std::exception& why) {
        log_about_members(log_level::warning, why.what());
      }
    }
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  struct task {
    std::unique_ptr<job> what;
    base::unique_fd socket;
  };

  /// Numbers for the descriptors of a packet, beside those of sockets: a socket that arrives when
  /// none is left is lost. Waits until others have returned theirs.
  class packet_room {
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

  // ---- functions that use the descriptor table ----

  /// Returns nullopt when the broker has closed its end.
  std::optional<task> receive_job() {
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
    return task{object_at<job>(address), base::unique_fd(fd)};
  }

  /// Reads one packet and passes it to the broker. Foreign descriptors are left in `foreign`, until
  /// the broker is done with the packet.
  void carry(const task& what, std::vector<base::unique_fd>& foreign, packet_room& room) {
    std::vector<base::unique_fd> chunks;
    auto created = fetch(what, chunks, foreign);
    room.keep(chunks.size() + foreign.size());
    const std::shared_ptr<gate> open = created->open;
    // The packet transfers copies to the broker; these are closed afterwards.
    hand_over(std::move(created), chunks);
    open->wait(stopped_);
  }

  /// Descriptors in this table do not belong to the broker: they are not guarded.
  std::unique_ptr<received_packet> fetch(const task& what,
                                         std::vector<base::unique_fd>& chunks,
                                         std::vector<base::unique_fd>& foreign) {
    auto created = std::make_unique<received_packet>();
    created->session = what.what->session;
    if (!what.socket) {
      return created;  // no descriptor was left for it: the packet is fetched again
    }
    const wire::packet_buffer buffer;
    try {
      auto got = transport::peek_packet(what.socket.get(), buffer.bytes());
      created->status = got.status;
      // Nothing here would keep its descriptors open when the broker removes the packet.
      created->failed = got.status == transport::receive_status::descriptors_lost;
      created->packet.assign(got.packet.begin(), got.packet.end());
      const bool is_as_announced = got.descriptors.size() == what.what->taken;
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
      log_about_members(log_level::warning, why.what());
      created->failed = true;
    }
    return created;
  }

  /// Gives the keeper copies. If it takes none, the broker has no room for them either.
  void keep(received_packet& created, std::vector<base::unique_fd>& chunks) {
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
        log_about_members(log_level::warning, why.what());
      }
      created.status = transport::receive_status::descriptors_lost;
    }
  }

  void hand_over(std::unique_ptr<received_packet> what,
                 const std::vector<base::unique_fd>& chunks) {
    std::vector<int> numbers(
        what->status == transport::receive_status::descriptors_lost ? 0 : chunks.size());
    std::transform(chunks.begin(),
                   chunks.begin() + static_cast<std::ptrdiff_t>(numbers.size()),
                   numbers.begin(),
                   [](const auto& fd) { return fd.get(); });
    const address_text text = text_of(what.get());
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
            static_cast<void>(what.release());
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

  /// Lets the keeper close its copy first, which then cannot block it.
  void take_from_keeper(records::descriptor_id number) {
    if (number == 0) {
      return;
    }
    retry_with_keeper(
        [&] {
          const std::lock_guard lock(keeping_);
          if (shelf_) {
            shelf_->remove_and_wait(std::span(&number, 1));
          }
        },
        [&] { return stopped_.load(std::memory_order_relaxed); });
  }

  void report_closed(std::uint64_t number) {
    auto report = std::make_unique<received_packet>();
    report->closed = number;
    hand_over(std::move(report), {});
  }

  // ---- functions that do not ----

  void give(task next) {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[next.what->principal];
    queue.push_back(std::move(next));
    if (queue.size() == 1) {
      runnable_.push_back(queue.front().what->principal);
    }
    if (idle_ < runnable_.size() && threads_ < max_threads) {
      base::start_thread("gpushm-receiver", [self = shared_from_this()] { self->work(); }).detach();
      ++threads_;
    }
    changed_.notify_one();
  }

  void work() {
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

  void perform(task& what) noexcept {
    const base::own_table_scope own;
    const std::uint64_t closes = what.what->closes;
    // cppcheck-suppress throwInNoexceptFunction ; `guarded` catches it
    guarded([&] {
      if (closes != 0) {
        what.what->broker_copy->wait(stopped_);
        take_from_keeper(what.what->kept);
        return;
      }
      packet_room room(*this);
      std::vector<base::unique_fd> foreign;  // closing them may block
      carry(what, foreign, room);
    });
    what.socket.reset();  // may block
    if (closes != 0) {
      guarded([&] { report_closed(closes); });
    }
  }

  template <typename Work>
  static void guarded(Work&& work) noexcept {
    try {
      work();
    } catch (const std::exception& why) {
      log_about_members(log_level::warning, why.what());
    }
  }

  base::unique_fd worker_end_;
  std::mutex keeping_;
  std::optional<descriptor_shelf> shelf_;
  std::mutex sending_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable returned_;  ///< some of `held_`
  std::uint64_t held_ = 0;            ///< numbers for descriptors of packets
  std::map<std::string, std::deque<task>> queues_;
  std::deque<std::string> runnable_;
  std::size_t idle_ = 0;
  std::size_t threads_ = 0;
  std::atomic<bool> stopped_ = false;
};

descriptor_receiver::descriptor_receiver(
    const std::function<std::optional<descriptor_shelf>()>& shelf) {
  std::array<int, 2> pair{};
  base::checked("serve", {}, "socketpair", [&] {
    return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data());
  });
  broker_end_ = base::unique_fd(pair[0]);
  base::unique_fd worker_end(pair[1]);

  const auto created = std::make_shared<worker_pool>(worker_end.get());
  // Once the thread has its own table, `worker_end` is the same number in both tables; until then
  // only the thread may use it.
  bool has_own_table = false;
  std::exception_ptr failed;
  try {
    has_own_table = start_with_own_table(
        "gpushm-receiver",
        {worker_end.get()},
        [created, &shelf, &failed] {
          const base::own_table_scope own;
          base::reserve_descriptor_numbers(first_numbers);
          try {
            created->set_shelf(shelf());
          } catch (...) {
            failed = std::current_exception();
          }
        },
        [created] { created->run(); });
  } catch (...) {
    static_cast<void>(worker_end.release());  // owned by the worker pool
    throw;
  }
  if (!has_own_table) {
    static_cast<void>(worker_end.release());
    log_about_broker(
        log_level::warning,
        "serve: the kernel or a system call filter rejects close_range with "
        "CLOSE_RANGE_UNSHARE: a member that sends a descriptor whose close blocks can keep "
        "this process from exiting (allow close_range)");
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
}

/// What threads have handed over belongs to this object; what they hand over later, to them.
descriptor_receiver::~descriptor_receiver() {
  ::shutdown(broker_end_.get(), SHUT_RD);
  try {
    while (next()) {
    }
  } catch (const std::exception& why) {
    log_about_members(log_level::warning, why.what());
  }
}

bool descriptor_receiver::fetch(std::uint64_t session,
                                const core::principal& principal,
                                int socket,
                                std::size_t taken) {
  auto created =
      std::make_unique<job>(session, std::string(core::scheduling_key(principal)), taken);
  const address_text text = text_of(created.get());
  const std::array<int, 1> fds{socket};
  try {
    if (transport::send_packet(broker_end_.get(), text, fds) != transport::send_result::sent) {
      return false;
    }
  } catch (const error& why) {
    if (why.code() != errc::too_many_descriptors) {
      throw;
    }
    return false;  // too many are in flight for this uid, possibly sent by another program
  }
  static_cast<void>(created.release());
  return true;
}

bool descriptor_receiver::close_elsewhere(const core::principal& principal,
                                          kept_fd& socket,
                                          std::uint64_t number) noexcept {
  try {
    const auto broker_copy = std::make_shared<gate>();
    auto created = std::make_unique<job>(
        std::string(core::scheduling_key(principal)), broker_copy, socket.id, number);
    const address_text text = text_of(created.get());
    const std::array<int, 1> fds{socket.get()};
    if (transport::send_packet(broker_end_.get(), text, fds) != transport::send_result::sent) {
      return false;
    }
    static_cast<void>(created.release());
    socket.file.reset();  // not the last copy, so this does not block
    broker_copy->close();
    return true;
  } catch (const error& why) {
    if (why.code() != errc::too_many_descriptors) {  // in flight for this uid
      log_about_members(log_level::warning, why.what());
    }
  } catch (const std::exception& why) {
    log_about_members(log_level::warning, why.what());
  }
  return false;
}

std::unique_ptr<descriptor_receiver::received_packet> descriptor_receiver::next() {
  address_text text{};
  auto got = transport::receive_guarded(broker_end_.get(), text);
  if (got.packet.size() != text.size()) {
    return nullptr;
  }
  auto result = object_at<received_packet>(text);
  if (got.status == transport::receive_status::descriptors_lost) {
    result->status = got.status;
  }
  result->descriptors = not_kept(std::move(got.descriptors));
  for (std::size_t i = 0; i < result->descriptors.size() && i < result->kept.size(); ++i) {
    result->descriptors[i].id = result->kept[i];
  }
  return result;
}

}  // namespace gpushm::broker_detail
