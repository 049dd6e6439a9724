// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "client/connection.hpp"
#include "client/lease_table.hpp"
#include "gpushm/client.hpp"

namespace gpushm::detail {

/// A client's connection to its broker. If the broker ends it or dies, the link reconnects, and
/// recovers the leases if the broker still has them.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class broker_link {
 public:
  /// Connects. Throws as `client::connect`. Precondition: `options.socket_path` is not empty.
  broker_link(connect_options options, std::shared_ptr<lease_table> leases);
  broker_link(const broker_link&) = delete;
  broker_link& operator=(const broker_link&) = delete;
  /// Disconnects the table from lost leases, and has it drop what is not used.
  ~broker_link();

  /// Returns the connection; a new one if the former has ended. Blocks while this or another thread
  /// connects, for the timeouts of the options. Throws as `client::connect`.
  [[nodiscard]] std::shared_ptr<connection> get();

 private:
  [[nodiscard]] std::shared_ptr<connection> connect_until(steady_time deadline,
                                                          const connection* predecessor) const;
  void take_over(connection& former, const std::shared_ptr<connection>& next);

  connect_options options_;
  std::shared_ptr<lease_table> leases_;
  std::mutex mutex_;
  std::condition_variable connected_;
  bool connecting_ = false;  ///< one thread connects; others wait for it, up to their deadlines
  std::shared_ptr<connection> connection_;
};

}  // namespace gpushm::detail
