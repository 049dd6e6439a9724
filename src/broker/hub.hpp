// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/guarded_fd.hpp"
#include "broker/closer.hpp"
#include "broker/counters.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "wire/messages.hpp"

namespace gpushm::broker_detail {

/// The descriptors of one segment, closed with the last packet that carries them; where `closed_by`
/// is set, there.
struct segment_files final : core::payload {
  segment_files() = default;
  segment_files(const segment_files&) = delete;
  segment_files& operator=(const segment_files&) = delete;
  ~segment_files() override;

  std::vector<base::guarded_fd> chunks;
  std::vector<std::uint64_t> chunk_bytes;
  std::shared_ptr<const core::charges> held;
  std::shared_ptr<closer> closed_by;
};

/// A packet on its way out. Answers with metadata, and events, are encoded when they are sent: many
/// may wait.
struct outgoing {
  std::vector<std::byte> packet;  ///< empty: `late` is to be encoded
  wire::message late;
  std::shared_ptr<const core::metadata_block> metadata;  ///< of a late `opened`
  std::vector<int> descriptors;                          ///< not owned
  std::shared_ptr<const segment_files> files;            ///< keeps `descriptors` open
  std::optional<std::uint64_t> subscription;  ///< an event's: may be dropped for a resync
  bool is_answer = true;                      ///< false: the session did not ask for it
  bool on_event_lane = false;
  std::shared_ptr<const base::guarded_fd> own;  ///< one of `descriptors` that only this has

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// What it is charged while it waits.
  [[nodiscard]] std::uint64_t cost() const noexcept;
};

/// One packet in a place that a queue can take over: what is prepared can be sent without memory.
using prepared = std::list<outgoing>;

/// The socket that a packet came on.
enum class lane_kind : unsigned char { requests, events };

/// What is left of an `open_many`.
struct open_rest {
  std::uint64_t id = 0;
  wire::open_many request;
  std::uint32_t next = 0;
  std::optional<core::time_point> deadline;
  core::time_point asked;
};

/// What the hub knows of a session. The server's connection is one: it lives in the domain's map of
/// sessions until the session is forgotten, also while it waits for its fence.
struct session : core::payload {
  explicit session(core::session_id id) : number(id) {}

  const core::session_id number;
  bool greeted = false;
  bool said_bye = false;
  /// Nothing more is received from it, or sent to it; what was sent before still goes out.
  bool dropped = false;
  bool has_event_lane = false;
  wire::session_token token{};
  std::optional<open_rest> rest;
};

/// Where the hub's packets go.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  virtual ~outbox() = default;
  /// Of at most one packet.
  virtual void send(session& to, prepared packet) noexcept = 0;
  /// There was no memory for an event: the subscriber has to read again what it follows.
  virtual void lose_event(session& of, std::uint64_t subscription) noexcept = 0;
  /// Close the connection once what was sent before is out; then comes `hub::lose`. `why` is for
  /// the log.
  virtual void drop(session& of, std::string_view why) noexcept = 0;
  /// Makes the session's second socket; the result is the client's end. Throws.
  [[nodiscard]] virtual base::guarded_fd open_event_lane(session& of) = 0;
  /// Packets that were queued there so far.
  [[nodiscard]] virtual std::uint64_t events_queued(const session& of) const noexcept = 0;
  /// What the session gave as its fence. `pidfd` and `life` are empty exactly when there is none.
  virtual void fence_of(session& of, fence kind, base::guarded_fd pidfd, base::guarded_fd life) = 0;
};

/// The broker without I/O: packets and descriptors in, packets and descriptors out. Decodes,
/// verifies, lets the domain decide, answers. Whatever a client sends, it gets an answer or is
/// dropped, and others do not notice. A request that memory runs out for changes nothing and is
/// answered so: what it needs is made before the domain decides, and what comes of that needs none.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand, except
/// `statistics`.
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
    std::shared_ptr<broker_detail::closer> closer =
        nullptr;  ///< null: files are closed where they end
    std::chrono::milliseconds fence_delay{5'000};
  };
  /// Hears which slot of the state table changed.
  using slot_listener = void (*)(void* context,
                                 std::uint32_t,
                                 gpushm::generation,
                                 std::optional<segment_state>);

  /// `out` must outlive the hub.
  hub(config options, outbox& out, slot_listener listener, void* listener_context);

  /// Keeps the session until it is forgotten: by `lose`, `hang_up`, or another that resumes it.
  /// Throws too_many_connections, too_many_descriptors, out_of_memory, share_exceeded; then it does
  /// not.
  void accept(std::shared_ptr<session> made, const core::peer& who);
  /// Null: it was forgotten.
  [[nodiscard]] session* find(core::session_id number) const noexcept {
    return static_cast<session*>(domain_.payload_of(number));
  }
  template <typename Visit>
  void for_each_session(Visit&& visit) const {
    domain_.for_each_payload([&](core::payload& each) { visit(static_cast<session&>(each)); });
  }
  /// `foreign`: descriptors that came with the packet, are no chunks by their kind, and were
  /// closed.
  void receive(session& from,
               std::span<const std::byte> packet,
               std::vector<base::guarded_fd> descriptors,
               core::time_point now,
               std::size_t foreign = 0,
               lane_kind on = lane_kind::requests);
  /// The packet is whole, but this process had no room for its descriptors. The request is refused.
  void receive_without_descriptors(session& from, std::span<const std::byte> packet);
  /// A packet that did not fit arrived: the session is told and dropped.
  void receive_truncated(session& from);
  /// The session is told what it did, and dropped.
  void violate(session& by, std::uint64_t id, std::string_view cause);
  /// Works on `rest`, which must be done before the session's next request is received.
  void resume(session& of);
  /// See core::domain.
  [[nodiscard]] bool has_work() const noexcept { return domain_.has_work(); }
  void work();
  void mute(const session& of) { domain_.mute(of.number); }
  [[nodiscard]] core::charges new_charges(const session& of) {
    return domain_.new_charges(of.number);
  }
  /// The connection is gone. True: without a goodbye, and it has leases, which stay until its
  /// process can write nothing any more: call `hang_up` then. False: the session is forgotten.
  [[nodiscard]] bool lose(session& gone, core::time_point now);
  /// The connection is gone, and its process has ended or said goodbye. The session is forgotten.
  /// No effect when it was.
  void hang_up(core::session_id number);
  void waits_for(core::session_id number, fence_wait what) { domain_.waits_for(number, what); }

  void tick(core::time_point now);
  [[nodiscard]] std::optional<core::time_point> next_deadline() const {
    return domain_.next_deadline();
  }
  [[nodiscard]] const core::domain& domain() const noexcept { return domain_; }
  /// From any thread.
  [[nodiscard]] broker_statistics statistics() const { return counters_.read(); }

 private:
  struct context;  // of one request

  // One a message kind that clients send. The result is the answer, as far as it is known by then:
  // opens are answered by what the domain decides.
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

  [[nodiscard]] prepared prepare(std::uint64_t id, wire::body body, outgoing packet = {}) const;
  /// Does what the domain wants, and sends the answer of the request that it comes from.
  void settle(session* from = nullptr, prepared answer = {}) noexcept;
  void send(session* to, prepared packet) noexcept;
  void deliver(core::open_answer answer) noexcept;
  [[nodiscard]] std::size_t ask(std::span<const core::question> questions) noexcept;
  void say_that_it_waits(const core::open_waits& what) noexcept;
  [[nodiscard]] prepared opened(const core::open_answer& answer) const;
  void tell(const core::change& what) noexcept;
  void tell(session* to, std::uint64_t subscription, const core::change& what) noexcept;
  /// `why` null: there was no memory.
  void fail(session* to,
            std::uint64_t id,
            std::uint32_t index,
            const error* why,
            lane_kind on = lane_kind::requests) noexcept;
  void drop(session& of, std::string_view why) noexcept;
  void take_fence(const context& at, const wire::hello& message);
  [[nodiscard]] bool resume_lost(const session& heir, const wire::session_token& token);
  [[nodiscard]] wire::segment describe(const core::segment& what) const;
  [[nodiscard]] wire::listing list_page(core::session_id number,
                                        const std::string& prefix,
                                        const std::string& after) const;
  void close(std::vector<base::guarded_fd> files) noexcept;

  config config_;
  outbox& out_;
  slot_listener listener_;
  void* listener_context_;
  core::domain domain_;
  counters counters_;
  core::time_point now_{};  ///< of the last packet or tick
};

}  // namespace gpushm::broker_detail
