// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the driver of a trial (`run_trial`) and `gpushm trial-worker` say to each other: lines of
// JSON on the worker's standard input and output. Both are the same program, so the words are
// nobody else's and may change.
//
// Orders, each with "way" and "order":
//   hello   the worker itself answers "ready" with the PID of the child that does this way
//   export  device, socket, name, size_bytes, seed: "exported" with device, handle and rdma
//   open    device, socket, name, size_bytes, seed, answer_seed, handle, memory_device:
//           "answered" with open_ns and rdma
//   check   seed: "checked"
//   end     the child tidies up and ends
//   kill    the worker kills the child
// Events, each with "way", "event" and "pid": those above, and
//   failed  failure, text: what an order came to instead; the child then waits for "end"
//   ended   the worker's word that the child is gone: status, crashed
// A worker that cannot start says {"event":"failed","text":...} and ends.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// Writes all of `line` and a line feed. False when nobody reads any more.
bool send_line(int fd, std::string_view line);

/// Collects bytes until they are lines. Distinct objects: safe. Shared objects: unsafe.
class line_buffer {
 public:
  /// Reads once from `fd`, blocking if that blocks. False at the end of the input.
  bool fill(int fd);
  /// Takes the next whole line without its line feed. False when there is none yet.
  bool take(std::string& line);

 private:
  std::string text_;
};

/// One child's part: reads orders from `orders` and writes events to `answers` until told to end.
/// Uses CUDA, and may crash with it. Never throws.
void do_side(inspect::way how, int orders, int answers) noexcept;

}  // namespace gpushm::cli
