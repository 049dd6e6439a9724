// SPDX-License-Identifier: Apache-2.0
#pragma once

// The protocol between `run_trial` and `gpushm trial-worker`: lines of JSON on the worker's
// standard input and output. Private: both ends are the same program, so it may change.
//
// Orders, each with "way" and "order":
//   hello   the worker itself replies "ready" with the PID of the child for this way
//   export  device, socket, name, size_bytes, seed: "exported" with device, handle and rdma
//   open    device, socket, name, size_bytes, seed, answer_seed, handle, memory_device, measure:
//           "answered" with open_ns and rdma, and bytes_per_second (null unless measured)
//   check   seed: "checked"
//   end     the child cleans up and exits
//   kill    the worker kills the child
// Events, each with "way", "event" and "pid": those above, and
//   failed  failure, text: an order failed; the child then waits for "end"
//   ended   sent by the worker when the child has exited: status, crashed
// A worker that cannot start sends {"event":"failed","text":...} and exits.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// Writes `line` and a line feed completely. Returns false if the reader is gone.
bool send_line(int fd, std::string_view line);

/// Splits a stream into lines. Thread-safety: distinct objects: safe; shared objects: unsafe.
class line_buffer {
 public:
  /// Reads once from `fd`; blocks if `fd` does. Returns false at the end of the input.
  bool fill(int fd);
  /// Removes the next complete line and returns it without its line feed. Returns false if there is
  /// none yet.
  bool take(std::string& line);

 private:
  std::string text_;
};

/// Runs a worker's child: reads orders from `orders` and writes events to `answers` until the order
/// "end". Uses CUDA, which may crash. If `refusal` is not empty, every order fails with that text.
/// Does not throw.
void run_side(inspect::way sharing_way,
              int orders,
              int answers,
              std::string_view refusal = {}) noexcept;

/// The descriptor for the events of a child that executes `gpushm trial-side`.
inline constexpr int answers_number = 3;

}  // namespace gpushm::cli
