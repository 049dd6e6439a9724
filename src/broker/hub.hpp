// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.hpp"
#include "broker/counters.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "wire/messages.hpp"

namespace gpushm::broker_detail {

/// The descriptors of one segment, closed with the last packet that carries them.
struct segment_files {
  base::unique_fd control_page;
  std::vector<base::unique_fd> chunks;
  std::vector<std::uint64_t> chunk_bytes;
};

/// A packet on its way out.
struct outgoing {
  std::vector<std::byte> packet;
  std::vector<int> descriptors;                ///< not owned
  std::shared_ptr<const segment_files> files;  ///< keeps `descriptors` open
  std::optional<std::uint64_t> subscription;   ///< an event's: may be dropped for a resync
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
  virtual void drop(core::session_id session) = 0;
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
  };
  /// Hears which slot of the state table changed.
  using slot_listener = void (*)(void* context,
                                 std::uint32_t,
                                 gpushm::generation,
                                 std::optional<segment_state>);

  /// `out` must outlive the hub.
  hub(config options, outbox& out, slot_listener listener, void* listener_context);

  void accept(core::session_id session, const core::peer& who);
  void receive(core::session_id session,
               std::span<const std::byte> packet,
               std::vector<base::unique_fd> descriptors,
               core::time_point now);
  /// A packet that did not fit arrived: the session is told and dropped.
  void receive_truncated(core::session_id session);
  /// The connection is gone, or its process is.
  void hang_up(core::session_id session);
  /// The session has not said hello, though its time is over?
  [[nodiscard]] bool is_silent(core::session_id session) const;

  void tick(core::time_point now) {
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
  struct session_state {
    core::peer who;
    bool greeted = false;
    bool said_bye = false;
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
  template <typename Answer>
  void handle(const context& at, const Answer& message);

  void reply(core::session_id to, std::uint64_t id, wire::body body, outgoing packet = {});
  void fail(core::session_id to, std::uint64_t id, std::uint32_t index, const error& why);
  void violate(core::session_id session, std::uint64_t id, std::string_view cause);

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
  std::unordered_map<gpushm::generation, std::shared_ptr<segment_files>> files_;
};

}  // namespace gpushm::broker_detail
