// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/closer.hpp"
#include "broker/counters.hpp"
#include "broker/kept_fd.hpp"
#include "broker/recorder.hpp"
#include "broker/segment_ledger.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "wire/messages.hpp"

namespace gpushm::broker_detail {

/// The descriptors of one segment. They are closed when the segment and the last packet that
/// carries them are gone; by `closed_by` if it is set.
struct segment_files final : core::payload {
  segment_files() = default;
  segment_files(const segment_files&) = delete;
  segment_files& operator=(const segment_files&) = delete;
  ~segment_files() override;

  gpushm::generation generation = 0;
  /// A page of timelines has one more than `chunk_bytes`, which its openers do not get.
  std::vector<kept_fd> chunks;
  std::vector<std::uint64_t> chunk_bytes;
  std::shared_ptr<const core::charges> held;
  std::shared_ptr<closer> closed_by;
  bool is_lost = false;  ///< a predecessor had more chunks than these
  /// Of what is handed back: whether its creator does so. Not known after a restart.
  std::optional<bool> is_by_creator;

  /// The page, open for writing; null: these are no page of timelines.
  [[nodiscard]] const kept_fd* writable() const noexcept {
    return chunks.size() > chunk_bytes.size() ? &chunks.back() : nullptr;
  }
};

/// A packet to send. Answers with metadata and events are encoded when they are sent: many may be
/// queued.
struct outgoing {
  std::vector<std::byte> packet;  ///< empty: encode `late`
  wire::message late;
  std::shared_ptr<const core::metadata_block> metadata;  ///< of a late `opened`
  std::vector<int> descriptors;                          ///< not owned
  std::vector<records::descriptor_id> ids;               ///< of `descriptors`; 0: the state table
  std::shared_ptr<const segment_files> files;            ///< keeps `descriptors` open
  std::optional<std::uint64_t> subscription;  ///< of an event, which a resync may replace
  bool is_answer = true;                      ///< false: not the answer of a request
  bool on_event_lane = false;
  std::shared_ptr<const kept_fd> own;  ///< the one of `descriptors` that this owns
  std::uint64_t number = 0;            ///< its record's; 0: not recorded

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// Bytes charged while it is queued.
  [[nodiscard]] std::uint64_t cost() const noexcept;
};

/// One packet in a list node that can be spliced into a queue: sending it allocates no memory.
using prepared = std::list<outgoing>;

/// The socket that a packet was received on.
enum class lane_kind : unsigned char { requests, events };

/// The remaining names of an `open_many`. Move-only.
struct open_rest {
  std::uint64_t id = 0;
  wire::open_many request;
  std::uint32_t next = 0;
  std::optional<core::time_point> deadline;
  core::time_point asked;
  core::charges held = {};  ///< if there are more names than one turn opens

  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    constexpr std::uint64_t each_name = 64;
    std::uint64_t result = 0;
    for (const std::string& name : request.names) {
      result += each_name + name.size();
    }
    return result;
  }
};

/// The hub's state of a session. The server's `connection` derives from it. The domain's map of
/// sessions keeps it until the session is erased, also while it waits for its fence.
struct session : core::payload {
  explicit session(core::session_id id) : number(id) {}

  const core::session_id number;
  bool greeted = false;
  bool sent_bye = false;
  /// No more packets are received from it or queued for it; queued packets are still sent.
  bool dropped = false;
  bool has_event_lane = false;
  std::uint32_t known_kinds = wire::first_known_kinds;
  wire::session_token token{};
  std::optional<open_rest> rest;
};

/// The interface through which the hub sends packets.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  virtual ~outbox() = default;
  /// Queues a packet, which `deliver` sends. Precondition: at most one.
  virtual void send(session& to, prepared packet) noexcept = 0;
  /// Sends queued packets that are answers; everything is recorded.
  virtual void deliver() noexcept = 0;
  /// Records the session's state, in the next commit.
  virtual void record(const session& of) noexcept = 0;
  /// Records the session, and everything that is queued for it.
  virtual void record_all(session& of) noexcept = 0;
  /// Something could not be recorded: calls `hub::catch_up` later.
  virtual void retry_recording() noexcept = 0;
  /// An event was lost for lack of memory: the subscriber must read its segments again (resync).
  virtual void lose_event(session& of, std::uint64_t subscription) noexcept = 0;
  /// Closes the connection after queued packets are sent, then calls `hub::lose`. `why` is for the
  /// log.
  virtual void drop(session& of, std::string_view why) noexcept = 0;
  /// Creates the session's second socket and returns the client's end. Throws.
  [[nodiscard]] virtual kept_fd open_event_lane(session& of) = 0;
  /// Number of packets queued on the event lane so far.
  [[nodiscard]] virtual std::uint64_t events_queued(const session& of) const noexcept = 0;
  /// Sets the session's fence. `pidfd` and `life` are empty if and only if `kind` is none.
  virtual void fence_of(session& of, fence kind, kept_fd pidfd, kept_fd life) = 0;
};

/// The broker without I/O: packets and descriptors in, packets and descriptors out. Decodes and
/// verifies requests, passes them to the domain and answers. Whatever a client sends, it gets an
/// answer or is dropped, without effect on others. A request that runs out of memory changes
/// nothing and is refused: everything it needs is allocated before the domain is called, and
/// carrying out the domain's effects allocates nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand,
/// except `statistics`.
class hub final {
 public:
  struct config {
    std::string domain = "default";
    std::uint32_t owner_uid = 0;
    gpushm::epoch epoch{};
    core::limits limits;
    bool accept_fake_chunks = false;
    int state_table = -1;  ///< given to clients; not owned
    std::shared_ptr<core::process_budget> process = nullptr;
    /// Null: files are closed in the calling thread.
    std::shared_ptr<broker_detail::closer> closer = nullptr;
    std::chrono::milliseconds fence_delay{5'000};
    /// Must outlive the hub. Null: nothing is recorded.
    recorder* records = nullptr;
    /// Must outlive the hub. Null: nothing that was lost is handed back.
    segment_ledger* ledger = nullptr;
    /// The domain of a predecessor. Null: an empty one.
    core::saved_state* from = nullptr;
  };
  /// Called when a slot of the state table changes.
  using slot_listener = void (*)(void* context,
                                 std::uint32_t,
                                 gpushm::generation,
                                 std::optional<segment_state>);

  /// `out` must outlive the hub.
  hub(config options, outbox& out, slot_listener listener, void* listener_context);

  /// Keeps the session until `lose`, `hang_up` or a session that resumes it erases it. Throws
  /// too_many_connections, too_many_descriptors, out_of_memory, share_exceeded; the session is then
  /// not kept.
  void accept(const std::shared_ptr<session>& created, const core::peer& who);
  /// Null: no such session, or it was erased.
  [[nodiscard]] session* find(core::session_id number) const noexcept {
    return static_cast<session*>(domain_.payload_of(number));
  }
  template <typename Visit>
  void for_each_session(Visit&& visit) const {
    domain_.for_each_payload([&](core::payload& each) { visit(static_cast<session&>(each)); });
  }
  /// How many descriptors a packet must have for its request to take them; 0: it takes none, and is
  /// refused if it has any. Changes nothing. Throws std::bad_alloc.
  [[nodiscard]] std::size_t descriptors_taken(const session& by,
                                              std::span<const std::byte> packet) const;
  /// `foreign`: number of descriptors that came with the packet and are not taken: they are not of
  /// a kind that members send, or not as many as the request takes.
  void receive(session& from,
               std::span<const std::byte> packet,
               std::vector<kept_fd> descriptors,
               core::time_point now,
               std::size_t foreign = 0,
               lane_kind on = lane_kind::requests);
  /// The packet is complete, but this process had no room for its descriptors. Refuses the request.
  void receive_without_descriptors(session& from, std::span<const std::byte> packet);
  /// Closes descriptors of a packet that is not handled.
  void discard(std::vector<kept_fd> descriptors) noexcept;
  /// A packet was too large: sends the session an error and drops it.
  void receive_truncated(session& from);
  /// Sends the session an error with `cause` and drops it.
  void violate(session& by, std::uint64_t id, std::string_view cause);
  /// For a session and the files of a segment that the predecessor had. Precondition: they exist.
  void restore(std::shared_ptr<session> created);
  void restore(gpushm::generation generation, std::shared_ptr<segment_files> files);
  /// A part of the segment's memory is gone (`segment_files::is_lost`): removes it.
  void lose_memory(gpushm::generation generation);
  /// Records everything that could not be recorded; if that fails again, `outbox::retry_recording`
  /// is called.
  void catch_up() noexcept;
  /// Opens some names of `rest`. `rest` must be empty before the session's next request is
  /// received.
  void resume(session& of);
  /// See core::domain.
  [[nodiscard]] bool has_work() const noexcept { return domain_.has_work(); }
  void work();
  void mute(const session& of) { domain_.mute(of.number); }
  [[nodiscard]] core::charges new_charges(const session& of) {
    return domain_.new_charges(of.number);
  }
  /// The connection is closed. Returns true if it ended without a goodbye and has leases, which
  /// stay until its process can no longer write: call `hang_up` then. Returns false if the session
  /// is erased.
  [[nodiscard]] bool lose(session& gone, core::time_point now);
  /// The connection is closed, and its process has exited or sent a goodbye. Erases the session. No
  /// effect if it was erased already.
  void hang_up(core::session_id number);
  void set_fence_wait(core::session_id number, fence_wait what) {
    domain_.set_fence_wait(number, what);
    settle();
    finish();
  }

  /// The time to hand back what an earlier broker has lost is over.
  void end_returns() noexcept;

  void tick(core::time_point now);
  [[nodiscard]] std::optional<core::time_point> next_deadline() const {
    return domain_.next_deadline();
  }
  [[nodiscard]] const core::domain& domain() const noexcept { return domain_; }
  /// Thread-safe.
  [[nodiscard]] broker_statistics statistics() const { return counters_.read(); }
  /// Thread-safe.
  [[nodiscard]] return_counts returns() const noexcept { return counters_.returns(); }

 private:
  struct context;  // of one request

  // One overload per kind of client message. Returns the answer, or nothing if it comes later:
  // opens are answered through the domain's effects.
  prepared handle(const context& at, const wire::hello& message);
  prepared handle(const context& at, const wire::reserve& message);
  prepared handle(const context& at, const wire::attach& message);
  prepared handle(const context& at, const wire::publish& message);
  prepared handle(const context& at, const wire::open& message);
  prepared handle(const context& at, const wire::open_many& message);
  prepared handle(const context& at, const wire::fetch_chunks& message);
  prepared handle(const context& at, const wire::release& message);
  prepared handle(const context& at, const wire::remove& message);
  prepared handle(const context& at, const wire::list& message);
  prepared handle(const context& at, const wire::stat& message);
  prepared handle(const context& at, const wire::subscribe& message);
  prepared handle(const context& at, const wire::unsubscribe& message);
  prepared handle(const context& at, const wire::bye& message);
  prepared handle(const context& at, const wire::confirmed& message);
  prepared handle(const context& at, const wire::report& message);
  prepared handle(const context& at, const wire::unfence& message);
  prepared handle(const context& at, const wire::keep& message);
  prepared handle(const context& at, const wire::cancel& message);
  template <typename Answer>
  prepared handle(const context& at, const Answer& message);

  void receive_one(session& from,
                   std::span<const std::byte> packet,
                   std::vector<kept_fd> descriptors,
                   std::size_t foreign,
                   lane_kind on);
  void reject(session& by, std::uint64_t id, std::string_view cause);
  void open_some(session& of);
  void disconnect(core::session_id number);
  [[nodiscard]] prepared prepare(std::uint64_t id, wire::body body, outgoing packet = {}) const;
  /// Carries out the domain's effects and queues the answer of the request that caused them.
  void settle(session* from = nullptr, prepared answer = {}) noexcept;
  /// At the end of every public function: makes what has changed permanent, and then sends answers.
  void finish() noexcept;
  void record_changes(core::effects& of) noexcept;
  void note_in_ledger(gpushm::generation generation, bool exists) noexcept;
  [[nodiscard]] std::optional<wire::receipt> receipt_for(core::session_id member,
                                                         const core::segment& what) const;
  void record_files(const segment_files& of) noexcept;
  void send(session* to, prepared packet) noexcept;
  void deliver(core::open_answer answer) noexcept;
  [[nodiscard]] std::size_t send_questions(std::span<const core::question> questions) noexcept;
  void send_waiting(const core::open_waits& what) noexcept;
  [[nodiscard]] prepared opened(const core::open_answer& answer) const;
  void send_event(const core::change& what) noexcept;
  void send_event(session* to, std::uint64_t subscription, const core::change& what) noexcept;
  /// `why` null: out of memory.
  void fail(session* to,
            std::uint64_t id,
            std::uint32_t index,
            const error* why,
            lane_kind on = lane_kind::requests) noexcept;
  void drop(session& of, std::string_view why) noexcept;
  [[nodiscard]] core::lost_segment check_return(const context& at,
                                                const wire::reserve& message) const;
  void check_name(const context& at, std::string_view name) const;
  void take_fence(const context& at, const wire::hello& message);
  [[nodiscard]] bool resume_lost(const session& successor, const wire::session_token& token);
  [[nodiscard]] wire::segment describe(const core::segment& what) const;
  [[nodiscard]] wire::listing list_page(const session& member,
                                        const std::string& prefix,
                                        const std::string& after) const;
  [[nodiscard]] kept_fd keep(base::guarded_fd file);
  void make_page(const core::segment& what, segment_files& files);
  void check_page_of_return(const core::segment& what, const kept_fd& given) const;
  void end_page(gpushm::generation generation) noexcept;
  [[nodiscard]] bool charge_for_end(const core::segment& of) noexcept;
  void close(std::vector<kept_fd> files) noexcept;

  config config_;
  recorder off_;  ///< if there is no other
  recorder& recorder_;
  outbox& out_;
  slot_listener listener_;
  void* listener_context_;
  core::domain domain_;
  /// Charges that are never returned, by their accounts.
  std::map<const core::account*, core::charges> for_ended_pages_;
  counters counters_;
  core::time_point now_{};  ///< of the last packet or tick
};

}  // namespace gpushm::broker_detail
