// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/fence/gpu_work.hpp"

namespace gpushm::fence_rounds {

/// What the writer leaves behind.
enum class offspring : std::uint8_t {
  none,
  forked,  ///< a child of fork(2), which lives on
  cloned,  ///< a child that was made without fork handlers, which has the driver's files
};

/// Whose GPU and whose segment.
enum class sharing : std::uint8_t {
  own,          ///< the writer's segment, all on GPU 0
  peer_reader,  ///< the writer's segment on GPU 0, which the watcher has mapped for GPU 1
  peer_writer,  ///< the watcher's segment on GPU 0, which the writer opens and writes from GPU 1
};

struct proof_options {
  work does = work::kernel;
  offspring leaves = offspring::none;
  sharing shares = sharing::own;
};

/// A process that uses the library as any other: has the segment, makes the GPU write it, says
/// "child PID" (if it leaves one) and "ready" on standard output, and writes until it is killed. On
/// a fake GPU, whose work ends with the process, it first gives up its connection without a goodbye
/// at the word "go" on standard input. Returns an exit status when it cannot.
int be_proof_writer(const std::string& socket_path,
                    const std::string& name,
                    const proof_options& options);

/// Whether the GPUs of this process are the fake driver's.
[[nodiscard]] bool has_fake_gpus();

[[nodiscard]] std::string to_text(const proof_options& options);
[[nodiscard]] proof_options proof_from_text(const std::string& text);

}  // namespace gpushm::fence_rounds
