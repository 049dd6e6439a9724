// SPDX-License-Identifier: Apache-2.0
#include "client/session/fence_proof.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/files/device_files.hpp"
#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"

namespace gpushm::client_detail {

namespace {

/// The MPS server performs the GPU work of its clients, even after a client has ended. The driver
/// looks for the pipe of the control daemon in this directory (CUDA MPS,
/// "CUDA_MPS_PIPE_DIRECTORY").
bool may_use_mps() {
  const char* const directory =
      std::getenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe): as the driver does
  const std::string path = directory == nullptr ? "/tmp/nvidia-mps" : directory;
  return ::access((path + "/control").c_str(), F_OK) == 0;
}

/// Once true it stays true: later children run the fork handlers, or hold the life pipe.
bool no_child_may_have_driver_files() {
  static std::atomic<std::uint64_t> known_in{0};
  if (known_in.load(std::memory_order_relaxed) == base::fork_generation()) {
    return true;
  }
  if (base::descendants_may_have_driver_files()) {
    return false;
  }
  known_in.store(base::fork_generation(), std::memory_order_relaxed);
  return true;
}

}  // namespace

fence_proof::fence_proof() {
  if (may_use_mps()) {
    return;
  }
  pidfd_ = base::guarded_fd::open(
      [] { return static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)); });
  if (!pidfd_) {
    if (errno == EMFILE || errno == ENFILE) {
      base::throw_errno(errno, "connect", {}, "pidfd_open");
    }
    return;  // Linux before 5.3, gVisor, or a seccomp filter
  }
  const int life = base::life_pipe();  // created before the children are checked
  numbers_ = {pidfd_.get(), life};
  kind_ = no_child_may_have_driver_files() ? fence::proven : fence::unproven;
}

}  // namespace gpushm::client_detail
