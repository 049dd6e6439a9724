// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/kept_fd.hpp"
#include "succession/records/records.hpp"

namespace gpushm::broker_detail {

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

/// Holds a thread of the pool until the broker is done. Thread-safety: shared objects: safe.
class packet_gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    changed_.notify_all();
  }
  /// Blocks until it is closed, or shortly after `stopped` has become true.
  void wait(const std::atomic<bool>& stopped);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

/// What a thread of the pool has read from one socket.
struct received_packet {
  received_packet();
  received_packet(const received_packet&) = delete;
  received_packet& operator=(const received_packet&) = delete;
  ~received_packet();

  std::uint64_t session = 0;
  transport::receive_status status = transport::receive_status::would_block;
  std::vector<std::byte> packet;
  std::vector<succession::kept_fd> descriptors;  ///< of kinds that members have a reason to send
  std::vector<records::descriptor_id> kept;      ///< their numbers, also if `descriptors` is empty
  std::size_t foreign = 0;  ///< number of others, or of all if not as many as are taken
  /// Not 0: not a packet, but the report that a socket is closed (`close_elsewhere`).
  std::uint64_t closed = 0;
  bool failed = false;  ///< an unexpected socket error, or descriptors that cannot be received
  bool is_keeper_behind = false;      ///< descriptors are lost because the keeper does not read
  std::shared_ptr<packet_gate> open;  ///< keeps copies of the descriptors open
  /// Set by the thread that fills the packet, read by the one that takes it. The kernel
  /// orders the two, but neither the language nor ThreadSanitizer models that.
  std::atomic<bool> complete = false;
};

/// A job for the worker pool, sent with its socket. It is on this process's heap; only its address
/// is sent.
struct socket_job {
  /// Receives a packet.
  socket_job(std::uint64_t number, std::string whose, std::size_t count)
      : session(number), principal(std::move(whose)), taken(count) {}
  /// Closes the socket.
  socket_job(std::string whose,
             std::shared_ptr<packet_gate> copy_open,
             records::descriptor_id id,
             std::uint64_t number)
      : principal(std::move(whose)), broker_copy(std::move(copy_open)), kept(id), closes(number) {}
  std::uint64_t session = 0;
  std::string principal;
  std::size_t taken = 0;  ///< descriptors that the packet's request takes
  /// If set, only close the socket once the broker has closed its copy: only the last close may
  /// block.
  std::shared_ptr<packet_gate> broker_copy;
  records::descriptor_id kept = 0;     ///< the keeper has a copy
  std::uint64_t closes = 0;            ///< the number that reports the close
  std::atomic<bool> complete = false;  ///< as in `received_packet`
};

/// The threads with the other descriptor table. They exit when the broker's end of the socket pair
/// is closed; blocked threads exit once they are unblocked.
class worker_pool : public std::enable_shared_from_this<worker_pool> {
 public:
  explicit worker_pool(int worker_end) : worker_end_(worker_end) {}
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  ~worker_pool();

  /// Call first, on the first thread.
  void set_shelf(std::optional<succession::descriptor_shelf> shelf) { shelf_ = std::move(shelf); }

  /// Distributes jobs. Runs on the first thread.
  void run();

 private:
  struct task {
    std::unique_ptr<socket_job> job;
    base::unique_fd socket;
  };

  class packet_room;

  // ---- functions that use the descriptor table ----

  /// Returns nullopt when the broker has closed its end.
  std::optional<task> receive_job();

  /// Reads one packet and passes it to the broker. Foreign descriptors are left in `foreign`, until
  /// the broker is done with the packet.
  void carry(const task& task, std::vector<base::unique_fd>& foreign, packet_room& room);

  /// Descriptors in this table do not belong to the broker: they are not guarded.
  std::unique_ptr<received_packet> fetch(const task& task,
                                         std::vector<base::unique_fd>& chunks,
                                         std::vector<base::unique_fd>& foreign);

  /// Gives the keeper copies. If it takes none, the broker has no room for them either.
  void keep(received_packet& created, std::vector<base::unique_fd>& chunks);

  void hand_over(std::unique_ptr<received_packet> packet,
                 const std::vector<base::unique_fd>& chunks);

  /// Lets the keeper close its copy first, which then cannot block it.
  void take_from_keeper(records::descriptor_id number);

  void report_closed(std::uint64_t number);

  // ---- functions that do not ----

  void give(task next);

  void work();

  void perform(task& task) noexcept;

  base::unique_fd worker_end_;
  std::mutex keeping_;
  std::optional<succession::descriptor_shelf> shelf_;
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

}  // namespace gpushm::broker_detail
