// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "broker/hub/counters.hpp"
#include "core/budget.hpp"
#include "gpushm/broker.hpp"
#include "succession/recorder/segment_ledger.hpp"
#include "succession/recorder/takeover_state.hpp"

namespace gpushm::broker_detail {

/// For a broker that a successor can continue: its keeper is the one that $NOTIFY_SOCKET names.
struct successor_options {
  std::string short_name;                          ///< of the domain, in the keeper
  std::optional<succession::takeover_state> from;  ///< nothing: there is nothing to continue
  /// If there is nothing: larger than those of every earlier segment, or a reference to one that
  /// was lost would be one to a segment that is created later.
  gpushm::generation first_generation = 1;
  std::string ledger_path;         ///< of the domain's `segment_ledger`
  succession::authenticator code;  ///< for it
  std::chrono::milliseconds return_time = succession::segment_ledger::default_return_time;
};

class hub;

/// The broker's sockets and timers around a hub. Everything but `stop` runs on the thread in `run`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe, except where noted.
class server {
 public:
  /// Binds the socket, or continues with that of a predecessor. `shared`: the budget shared by the
  /// brokers of the process; null: this is the only one. `successors`: end the process without
  /// `stop` to leave everything to a successor. Throws address_in_use, permission_denied,
  /// invalid_argument, system_error.
  server(const broker_options& options,
         std::shared_ptr<core::process_budget> shared,
         std::optional<successor_options> successors = {});
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server();

  /// Blocks and serves until `stop`. Calls `ready` once clients can connect; handles no request
  /// before that has returned. Nothing is left for a successor when this returns.
  void run(void (*ready)(void*), void* context);
  /// Thread-safe. Does not block; `run` returns soon after.
  void stop();

  [[nodiscard]] const std::string& socket_path() const noexcept;
  /// Thread-safe. Whether clients find its socket at the path.
  [[nodiscard]] bool is_at_path() const noexcept;
  /// Thread-safe. Binds the path again, whose socket or directory was removed or replaced; members
  /// stay connected. Does not block: it is done, or has failed and is logged, a moment later. The
  /// directory must exist.
  void bind_again();
  /// Thread-safe. The thread in `run` releases `token` after the work that waits already; without
  /// that thread, the destructor does. Does not block. Throws std::bad_alloc only.
  void pass(std::shared_ptr<const void> token);
  /// Thread-safe. The thread in `run` calls `work` after what waits already, and makes permanent
  /// what it changes; what it throws is logged. Without that thread, the destructor destroys it.
  /// Does not block. Throws too_many_requests if 64 wait already, and std::bad_alloc.
  void post(std::function<void(hub&)> work);
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept;
  /// Thread-safe.
  [[nodiscard]] broker_statistics statistics() const;
  /// Thread-safe.
  [[nodiscard]] return_counts returns() const noexcept;
  /// The bytes of removed segments whose memory is not free yet. Thread-safe.
  [[nodiscard]] std::uint64_t freeing_bytes() const noexcept;
  /// Nullopt if it has no keeper. Thread-safe.
  [[nodiscard]] std::optional<succession::keeper_health::state> keeper() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::broker_detail
