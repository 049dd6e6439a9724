// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
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
struct segment_files {
  segment_files() = default;
  segment_files(const segment_files&) = delete;
  segment_files& operator=(const segment_files&) = delete;
  ~segment_files();

  base::guarded_fd control_page;
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

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// What it is charged while it waits.
  [[nodiscard]] std::uint64_t cost() const noexcept;
};

/// Where the hub's packets go.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  virtual ~outbox() = default;
  virtual void send(core::session_id session, outgoing packet) = 0;
  /// Close the connection once what was sent before is out. The hub has forgotten the session.
  /// `why` is for the log.
  virtual void drop(core::session_id session, std::string_view why) = 0;
  /// What the session gave as its fence. `pidfd` and `life` are empty exactly when there is none.
  virtual void fence_of(core::session_id session,
                        fence kind,
                        base::guarded_fd pidfd,
                        base::guarded_fd life) = 0;
  /// The leases of `lost`, whose connection is gone, are another's now: its fence is not waited
  /// for.
  virtual void resumed(core::session_id lost) noexcept = 0;
};

/// The broker without I/O: packets and descriptors in, packets and descriptors out. Decodes,
/// verifies, lets the domain decide, answers. Whatever a client sends, it gets an answer or is
/// dropped, and others do not notice.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand, except
/// `statistics`.
class hub final : private core::observer {
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

  /// Throws too_many_connections, too_many_descriptors, out_of_memory, share_exceeded; then there
  /// is no session.
  void accept(core::session_id session, const core::peer& who);
  /// `foreign`: descriptors that came with the packet, are no chunks by their kind, and were
  /// closed.
  void receive(core::session_id session,
               std::span<const std::byte> packet,
               std::vector<base::guarded_fd> descriptors,
               core::time_point now,
               std::size_t foreign = 0);
  /// The packet is whole, but this process had no room for its descriptors. The request is refused.
  void receive_without_descriptors(core::session_id session, std::span<const std::byte> packet);
  /// A packet that did not fit arrived: the session is told and dropped.
  void receive_truncated(core::session_id session);
  /// The session has more of its last request to be worked on: call `resume` before it sends
  /// another.
  [[nodiscard]] bool has_rest(core::session_id session) const;
  void resume(core::session_id session);
  /// See core::domain.
  [[nodiscard]] bool has_work() const noexcept { return domain_.has_work(); }
  void work();
  void mute(core::session_id session) { domain_.mute(session); }
  [[nodiscard]] core::charges new_charges(core::session_id session) {
    return domain_.new_charges(session);
  }
  /// The connection is gone. True: without a goodbye, and it has leases, which stay until its
  /// process can write nothing any more: call `hang_up` then.
  [[nodiscard]] bool lose(core::session_id session, core::time_point now);
  /// The connection is gone, and its process has ended or said goodbye.
  void hang_up(core::session_id session);
  void waits_for(core::session_id session, fence_wait what) { domain_.waits_for(session, what); }
  /// The session has not said hello, though its time is over?
  [[nodiscard]] bool is_silent(core::session_id session) const;

  void tick(core::time_point now) {
    now_ = now;
    domain_.tick(now);
    counters_.state_of(domain_);
  }
  [[nodiscard]] std::optional<core::time_point> next_deadline() const {
    return domain_.next_deadline();
  }
  [[nodiscard]] const core::domain& domain() const noexcept { return domain_; }
  /// From any thread.
  [[nodiscard]] broker_statistics statistics() const { return counters_.read(); }

 private:
  /// What is left of an open_many.
  struct open_rest {
    std::uint64_t id = 0;
    wire::open_many request;
    std::uint32_t next = 0;
    std::optional<core::time_point> deadline;
    core::time_point asked;
  };
  struct session_state {
    core::peer who;
    bool greeted = false;
    bool said_bye = false;
    wire::session_token token{};
    std::optional<open_rest> rest;
  };
  struct context;  // of one request

  // One a message kind that clients send.
  void handle(const context& at, const wire::hello& message);
  void handle(const context& at, const wire::reserve& message);
  void handle(const context& at, const wire::attach& message);
  void handle(const context& at, const wire::publish& message);
  void handle(const context& at, const wire::open& message);
  void handle(const context& at, const wire::open_many& message);
  void handle(const context& at, const wire::fetch_chunks& message);
  void handle(const context& at, const wire::release& message);
  void handle(const context& at, const wire::remove& message);
  void handle(const context& at, const wire::list& message);
  void handle(const context& at, const wire::stat& message);
  void handle(const context& at, const wire::subscribe& message);
  void handle(const context& at, const wire::unsubscribe& message);
  void handle(const context& at, const wire::bye& message);
  void handle(const context& at, const wire::confirmed& message);
  void handle(const context& at, const wire::report& message);
  void handle(const context& at, const wire::unfence& message);
  void handle(const context& at, const wire::keep& message);
  template <typename Answer>
  void handle(const context& at, const Answer& message);

  void reply(core::session_id to, std::uint64_t id, wire::body body, outgoing packet = {});
  void fail(core::session_id to, std::uint64_t id, std::uint32_t index, const error& why);
  void violate(core::session_id session, std::uint64_t id, std::string_view cause);
  void take_fence(const context& at, const wire::hello& message);
  [[nodiscard]] bool resume_lost(core::session_id session, const wire::session_token& token);
  [[nodiscard]] wire::segment describe(const core::segment& what) const;
  void close(std::vector<base::guarded_fd> files) noexcept;

  void slot_changed(std::uint32_t slot,
                    gpushm::generation generation,
                    std::optional<segment_state> state) override;
  void freed(const core::segment& gone) override;
  void notify(core::session_id session,
              std::uint64_t subscription,
              const core::change& what) override;
  void opened(core::session_id session,
              const core::open_request& request,
              const core::segment& found) override;
  void open_failed(core::session_id session,
                   const core::open_request& request,
                   const error& why) override;
  void confirm(core::session_id exporter,
               std::uint64_t confirmation,
               gpushm::generation generation) override;
  void lost(core::session_id holder, const core::change& what) override;

  config config_;
  outbox& out_;
  slot_listener listener_;
  void* listener_context_;
  core::domain domain_;
  counters counters_;
  std::unordered_map<core::session_id, session_state> sessions_;
  std::map<wire::session_token, core::session_id> lost_;         ///< those that can be resumed
  std::map<core::session_id, wire::session_token> lost_tokens_;  ///< the same
  core::time_point now_{};                                       ///< of the last packet or tick
  std::unordered_map<gpushm::generation, std::shared_ptr<segment_files>> files_;
};

}  // namespace gpushm::broker_detail
