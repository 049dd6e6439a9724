// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/proof_writer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::fence_rounds {

namespace {

/// The work of a fake GPU, whose memory the watcher shares with this process.
void write_forever(std::uintptr_t target) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the fake driver's addresses are this process's own
  auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(target);
  for (std::uint64_t value = 1;; ++value) {
    for (std::uint64_t i = 0; i < watched_bytes / sizeof(std::uint64_t); i += 512) {
      words[i] = value;
    }
    ::usleep(100);
  }
}

void print_line(const std::string& line) {
  const std::string text = line + "\n";
  static_cast<void>(!::write(STDOUT_FILENO, text.data(), text.size()));
}

void leave_child(offspring offspring, std::optional<std::uintptr_t> fake_target) {
  const pid_t child = offspring == offspring::cloned
                          ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
                          : ::fork();
  if (child < 0) {
    throw std::runtime_error("cannot create a child process");
  }
  if (child != 0) {
    print_line("child " + std::to_string(child));
    return;
  }
  ::setpgid(0, 0);  // the watcher kills its parent's process group
  ::alarm(60);      // in case the watcher dies
  if (offspring == offspring::cloned && fake_target) {
    write_forever(*fake_target);
  }
  for (;;) {
    ::pause();
  }
}

/// Closes all sockets of the process, as if the broker had dropped it.
void close_sockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat about {};
    const int fd = std::stoi(entry.path().filename());
    if (fd > STDERR_FILENO && ::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode)) {
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

bool wait_for_go(std::chrono::milliseconds timeout) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, static_cast<int>(timeout.count())) > 0;
}

void run(const std::string& socket_path, const std::string& name, const proof_options& options) {
  auto client = client::connect({.socket_path = socket_path});
  const bool peer = options.shares == sharing::peer_writer;
  segment memory = peer ? client.open(name, {.access = access::read_write, .device = "1"})
                        : client.create(name, {.size_bytes = shared_bytes, .device = "0"});
  if (!peer) {
    memory.publish();
  }
  const auto target = reinterpret_cast<std::uintptr_t>(memory.data());
  if (has_fake_gpus()) {
    std::thread(write_forever, target).detach();
    if (options.leaves != offspring::none) {
      leave_child(options.leaves, target);
    }
    print_line("ready");
    while (!wait_for_go(std::chrono::seconds(60))) {
    }
    close_sockets();
    for (;;) {
      ::pause();
    }
  }
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  const cuda::CUdevice gpu = driver::find_device(peer ? "1" : "0").handle;
  check(cu->cuCtxSetCurrent(driver::primary_context(gpu, "write", {})), "cuCtxSetCurrent");
  gpu_work writing(options.does, target);
  writing.begin();
  if (options.leaves != offspring::none) {
    leave_child(options.leaves, std::nullopt);
  }
  print_line("ready");
  while (!wait_for_go(std::chrono::milliseconds(5))) {
    writing.feed(200);
  }
}

}  // namespace

int run_proof_writer(const std::string& socket_path,
                     const std::string& name,
                     const proof_options& options) {
  try {
    run(socket_path, name, options);
  } catch (const std::exception& why) {
    std::cerr << "writer: " << why.what() << '\n';
  }
  return 1;
}

bool has_fake_gpus() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread sets variables
  return std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
}

std::string to_text(const proof_options& options) {
  std::ostringstream text;
  text << static_cast<int>(options.does) << ' ' << static_cast<int>(options.leaves) << ' '
       << static_cast<int>(options.shares);
  return text.str();
}

proof_options proof_from_text(const std::string& text) {
  std::istringstream from(text);
  int does = 0;
  int leaves = 0;
  int shares = 0;
  from >> does >> leaves >> shares;
  return {static_cast<work>(does), static_cast<offspring>(leaves), static_cast<sharing>(shares)};
}

}  // namespace gpushm::fence_rounds
