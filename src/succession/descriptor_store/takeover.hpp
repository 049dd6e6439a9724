// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "base/files/unique_fd.hpp"
#include "protocol/transport/listener.hpp"
#include "succession/descriptor_store/inherited_descriptors.hpp"
#include "succession/descriptor_store/stored_descriptors.hpp"

/// A keeper takes over what another one keeps, for another version of the program. The program of
/// the predecessor has exited before; it is started again, with what the predecessor still keeps,
/// if the successor or its program ends before that is ready. So there is never a second program.
///
/// Packets on a SOCK_SEQPACKET connection, in this order:
///
///     successor: "takeover 1"
///     predecessor, any number of times: "batch\n" and names, each with a newline, with as many
///         descriptors (at most 253); successor, for each: "kept"
///     predecessor: "all", with three descriptors: the lock and the socket of the listener, and the
///         write end of a pipe, which the successor's program inherits and keeps open
///     successor: "ready" once its program is; or "failed\n" and the reason, before it ends
///
/// Instead of the first batch, the predecessor may reply "refused\n" and the reason: it continues,
/// and the successor has nothing.
///
/// Either ends it by closing the connection. Thread-safety: distinct connections: safe.
namespace gpushm::keeper {

struct taken_over {
  std::vector<named_descriptor> descriptors;
  base::unique_fd lock;
  base::unique_fd listener;
  base::unique_fd life;          ///< for the program
  base::guarded_fd predecessor;  ///< the connection
};

/// Blocks for `timeout` at most, which includes the end of the predecessor's program. Nothing: no
/// keeper listens at `path`, or that has ended, or will not hand over, before it has sent anything.
/// Throws `error`: broker_unreachable if the predecessor refuses, or stops handing over (it
/// continues), too_many_descriptors if this process has no room.
[[nodiscard]] std::optional<taken_over> take_over(const std::string& path,
                                                  std::chrono::milliseconds timeout);
/// The successor's program is ready: the predecessor will not start its own again. Returns false if
/// the predecessor is gone.
bool report_ready(int predecessor) noexcept;
/// This keeper gives up: the predecessor will start its own program again. Does not block.
void report_failure(int predecessor, const std::string& reason) noexcept;
/// Whether the predecessor has ended, so that only the successor has the descriptors. Does not
/// block.
[[nodiscard]] bool has_predecessor_ended(int predecessor) noexcept;

/// Accepts a successor; empty: none waits, or it has another uid, or does not speak this protocol.
/// Blocks for one second at most.
[[nodiscard]] base::guarded_fd accept_successor(const transport::listener& listener);

/// Answers a successor that this keeper does not hand over now. Does not block.
void refuse(int successor, const std::string& reason) noexcept;

/// Hands everything over. Before the last message, calls `before_all` with the read end of the
/// pipe: end of file when neither the successor nor its program is alive. Blocks for `timeout` at
/// most. Throws `error`: then the successor has nothing that it may use, unless `before_all` has
/// been called.
void hand_over(int successor,
               const std::vector<stored_descriptor>& kept,
               const transport::listener& listener,
               std::chrono::milliseconds timeout,
               const std::function<void(base::unique_fd life)>& before_all);

enum class successor_state : unsigned char { starting, ready, failed };
/// Does not block, and removes nothing from the connection.
[[nodiscard]] successor_state state_of(int successor) noexcept;
/// What a successor that has failed reports, as printable text; empty: nothing, it has just ended.
/// Does not block.
[[nodiscard]] std::string failure_of(int successor) noexcept;

}  // namespace gpushm::keeper
