// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/hub/closer.hpp"
#include "broker/hub/counters.hpp"
#include "broker/hub/domain_recorder.hpp"
#include "broker/hub/effect_sink.hpp"
#include "broker/hub/outbox.hpp"
#include "broker/hub/timeline_pages.hpp"
#include "core/domain.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// There is no room for what a Reserve asks for, but memory is being freed.
class memory_not_freed final : public succession::retry_later {
  using succession::retry_later::retry_later;
};

/// What the requests of members do: each is verified, passed to the domain, and gets a reply. One
/// that throws has changed nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class requests {
 public:
  /// How long a Reserve waits for memory that is being freed, before it is refused: a third of a
  /// client's default `request_limit`, and the time for 50 GiB.
  static constexpr std::chrono::seconds freeing_patience{10};
  struct config {
    std::string domain = "default";
    std::uint32_t owner_uid = 0;
    gpushm::epoch epoch{};
    bool accept_fake_chunks = false;
    int state_table = -1;  ///< given to clients; not owned
    std::chrono::milliseconds fence_delay{5'000};
  };
  /// One request.
  struct context {
    session& from;
    core::session_id number = 0;  ///< of `from`
    std::uint64_t id = 0;
    /// Those not moved from are closed by the caller.
    std::vector<succession::kept_fd>& descriptors;
    core::time_point now;
    std::size_t foreign = 0;

    [[nodiscard]] std::size_t came() const noexcept { return descriptors.size() + foreign; }
  };

  /// `closer`: of the files of new segments; null: they are closed in the calling thread. The
  /// others must outlive this object.
  requests(config options,
           std::shared_ptr<closer> closer,
           core::domain& domain,
           effect_sink& effects,
           domain_recorder& record,
           timeline_pages& pages,
           outbox& out,
           counters& count);
  requests(const requests&) = delete;
  requests& operator=(const requests&) = delete;
  ~requests() = default;

  /// Returns the reply, or nothing if it comes later: replies to opens come through the domain's
  /// effects. Throws error, std::bad_alloc; retry_later if the same request can be handled later,
  /// or takes several turns.
  [[nodiscard]] prepared handle(const context& context, const wire::body& message);
  /// See `hub::descriptors_taken`.
  [[nodiscard]] std::size_t descriptors_taken(const session& session,
                                              std::span<const std::byte> packet) const;
  /// Opens some names of the session's `rest`.
  void open_some(session& session);

 private:
  // One overload per kind of client message.
  prepared handle(const context& context, const wire::hello& message);
  prepared handle(const context& context, const wire::reserve& message);
  prepared handle(const context& context, const wire::attach& message);
  prepared handle(const context& context, const wire::publish& message);
  prepared handle(const context& context, const wire::open& message);
  prepared handle(const context& context, const wire::open_many& message);
  prepared handle(const context& context, const wire::fetch_chunks& message);
  prepared handle(const context& context, const wire::release& message);
  prepared handle(const context& context, const wire::remove& message);
  prepared handle(const context& context, const wire::list& message);
  prepared handle(const context& context, const wire::stat& message);
  prepared handle(const context& context, const wire::subscribe& message);
  prepared handle(const context& context, const wire::unsubscribe& message);
  prepared handle(const context& context, const wire::bye& message);
  prepared handle(const context& context, const wire::confirmed& message);
  prepared handle(const context& context, const wire::report& message);
  prepared handle(const context& context, const wire::unfence& message);
  prepared handle(const context& context, const wire::keep& message);
  prepared handle(const context& context, const wire::cancel& message);
  prepared handle(const context& context, const wire::create_version& message);
  prepared handle(const context& context, const wire::change_version& message);
  prepared handle(const context& context, const wire::resolve& message);
  prepared handle(const context& context, const wire::list_versions& message);
  template <typename Reply>
  prepared handle(const context& context, const Reply& message);

  [[nodiscard]] const core::segment& reserve_when_freed(
      const context& context,
      const wire::reserve& message,
      const std::optional<core::lost_segment>& back);
  void check_name(const context& context, std::string_view name) const;
  void make_way(const core::lost_segment& segment, const core::peer& peer);
  void take_fence(const context& context, const wire::hello& message);
  [[nodiscard]] bool resume_lost(const session& successor, const wire::session_token& token);
  [[nodiscard]] wire::segment describe(const core::segment& segment, core::time_point now) const;
  [[nodiscard]] wire::listing list_page(const context& context,
                                        const std::string& prefix,
                                        const std::string& after) const;

  config config_;
  std::shared_ptr<closer> closer_;
  core::domain& domain_;
  effect_sink& effects_;
  domain_recorder& record_;
  timeline_pages& pages_;
  outbox& out_;
  counters& counters_;
};

}  // namespace gpushm::broker_detail
