// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/fence/gpu_work.hpp"

namespace gpushm::fence_rounds {

/// The processes that the writer leaves.
enum class offspring : std::uint8_t {
  none,
  forked,  ///< a child of fork(2), which stays alive
  cloned,  ///< a child created without fork handlers, which has the driver's files
};

/// The writing GPU and the owner of the segment.
enum class sharing : std::uint8_t {
  own,          ///< the writer's segment, all on GPU 0
  peer_reader,  ///< the writer's segment on GPU 0, mapped by the watcher for GPU 1
  peer_writer,  ///< the watcher's segment on GPU 0, opened and written from GPU 1 by the writer
};

struct proof_options {
  work does = work::kernel;
  offspring leaves = offspring::none;
  sharing shares = sharing::own;
};

/// A process that uses the library like any other: opens the segment, makes the GPU write it,
/// prints "child PID" (if it leaves a child) and "ready" to standard output, and writes until it is
/// killed. On a fake GPU, whose work ends with the process, it first closes its connection without
/// a goodbye when it reads "go" from standard input. Returns an exit status on failure.
int run_proof_writer(const std::string& socket_path,
                     const std::string& name,
                     const proof_options& options);

/// True if this process uses the fake driver.
[[nodiscard]] bool has_fake_gpus();

[[nodiscard]] std::string to_text(const proof_options& options);
[[nodiscard]] proof_options proof_from_text(const std::string& text);

}  // namespace gpushm::fence_rounds
