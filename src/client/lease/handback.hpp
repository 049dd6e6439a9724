// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>

#include "base/process/deadline.hpp"
#include "client/lease/lease_table.hpp"
#include "client/session/connection.hpp"

namespace gpushm::client_detail {

// What a client does when a broker and its keeper have died, and with them everything that the
// broker knew (docs/adr/0031): the next broker gets back what processes still have.

/// Hands back what this process has created, and persistent memory that it has open: sends the
/// receipts, the descriptors and the metadata. What another process has handed back before, or the
/// broker does not accept, stays lost; the latter is logged. `timeout` is for each request. Does
/// not throw; ends early if `connection` ends or does not answer.
void hand_back(lease_table& leases,
               const std::shared_ptr<connection>& connection,
               std::chrono::milliseconds timeout) noexcept;

/// Leases again what other processes hand back, as soon as they do. What has not been handed back
/// by `deadline` is handed back by those that have it: another process may have begun and not gone
/// on. Of timeline pages the broker ends the words then, because nothing else would end a wait
/// for a signaler that died with it. What is still missing 5 s later is given up.
/// Returns early if `stop` is requested. Blocks; `timeout` is for each request. Throws `error` if
/// `connection` ends or does not answer.
void open_again(lease_table& leases,
                const std::shared_ptr<connection>& connection,
                const std::stop_token& stop,
                std::chrono::milliseconds timeout,
                steady_time deadline);

}  // namespace gpushm::client_detail
