// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>

#include "client/lease/handback_thread.hpp"
#include "client/lease/lease_table.hpp"
#include "client/session/connection.hpp"
#include "client/session/lease_worker.hpp"
#include "gpushm/client.hpp"

namespace gpushm::client_detail {

/// Names in one OpenMany. Each one's chunks use descriptors until it is imported, and those must
/// fit into a soft limit of 1,024.
inline constexpr std::size_t names_per_batch = 128;

/// A client's connection to its broker. If the broker ends it or dies, the link reconnects with the
/// next request, and recovers the leases if the broker still has them. If it has lost them, and
/// gave receipts for them, the link hands back the segments of this process, even without a
/// request.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class broker_link final : private lease_listener {
 public:
  /// Connects, and requests the first of `options.prefetch` with the connection, which
  /// `connection::take_early` returns. Throws as `client::connect`. An empty
  /// `options.socket_path`: the first broker found at `machine_socket`, then `own_sockets`.
  broker_link(connect_options options, std::shared_ptr<lease_table> leases);
  broker_link(const broker_link&) = delete;
  broker_link& operator=(const broker_link&) = delete;
  /// Disconnects the table from lost leases. May wait for a second while leases are recovered.
  ~broker_link() override;

  [[nodiscard]] lease_table& leases() noexcept { return *leases_; }
  /// That of the broker to which the link has connected first.
  [[nodiscard]] const std::string& socket_path() const noexcept { return options_.socket_path; }

  /// Returns the connection; a new one if the previous one has ended. Blocks while this or another
  /// thread connects, for the timeouts of the options: one thread as long as `connect`, others for
  /// one request. Throws as `client::connect`, and cancelled if `stop` is requested meanwhile.
  [[nodiscard]] std::shared_ptr<connection> get(const std::stop_token& stop = {}) {
    return get(options_.timeout, options_.request_limit, stop);
  }

 private:
  [[nodiscard]] bool end_lost(gpushm::generation generation) noexcept override;
  void broker_ended(bool was_dropped) noexcept override;

  [[nodiscard]] std::shared_ptr<connection> get(std::chrono::milliseconds connect_timeout,
                                                std::chrono::milliseconds request_limit,
                                                const std::stop_token& stop);
  [[nodiscard]] bool recover_leases(const std::stop_token& stop) noexcept;
  [[nodiscard]] bool has_lost_leases() const noexcept;
  [[nodiscard]] std::shared_ptr<connection> connect_until(
      steady_time deadline,
      std::chrono::milliseconds handshake_timeout,
      const connection* predecessor,
      const std::stop_token& stop,
      std::span<const std::string> names = {});
  [[nodiscard]] std::shared_ptr<connection> establish(std::chrono::milliseconds handshake_timeout,
                                                      const connection* predecessor,
                                                      std::span<const std::string> names);
  [[nodiscard]] std::shared_ptr<connection> establish_at_default(
      std::chrono::milliseconds handshake_timeout, std::span<const std::string> names);
  void take_over(connection& former, const std::shared_ptr<connection>& next);

  connect_options options_;  ///< its socket does not change after the constructor
  std::shared_ptr<lease_table> leases_;
  std::mutex mutex_;
  std::condition_variable connected_;
  bool connecting_ = false;  ///< one thread connects; others wait for it, up to their deadlines
  std::shared_ptr<connection> connection_;
  std::shared_ptr<handback_thread> thread_;  ///< leaked in a forked child
};

}  // namespace gpushm::client_detail
