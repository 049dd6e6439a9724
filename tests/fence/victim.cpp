// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/victim.hpp"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/fence/gpu_work.hpp"

namespace gpushm::fence_rounds {

namespace {

using namespace gpushm::cuda;

constexpr std::uint64_t chunk_bytes = 1ULL << 30U;

CUdeviceptr map(const driver::cuda_driver& cu,
                CUmemGenericAllocationHandle memory,
                std::uint64_t bytes,
                std::span<const CUdevice> users) {
  CUdeviceptr at = 0;
  check(cu->cuMemAddressReserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
  check(cu->cuMemMap(at, bytes, 0, memory, 0), "cuMemMap");
  for (const CUdevice user : users) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, user};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cu->cuMemSetAccess(at, bytes, &access, 1), "cuMemSetAccess");
  }
  return at;
}

CUmemGenericAllocationHandle make(const driver::cuda_driver& cu,
                                  CUdevice device,
                                  std::uint64_t bytes) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle memory = 0;
  check(cu->cuMemCreate(&memory, bytes, &prop, 0), "cuMemCreate");
  return memory;
}

/// This process's descriptors of the driver's nodes, exported memory included.
std::vector<int> driver_files() {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code failure;
    const auto target = std::filesystem::read_symlink(entry.path(), failure);
    if (!failure && target.string().find("/nvidia") != std::string::npos) {
      numbers.push_back(std::stoi(entry.path().filename()));
    }
  }
  return numbers;
}

base::unique_fd own_pidfd() {
  return base::unique_fd(static_cast<int>(base::checked(
      "run victim", {}, "pidfd_open", [] { return ::syscall(SYS_pidfd_open, ::getpid(), 0); })));
}

/// The body of a child.
[[noreturn]] void run_child(holder holder, int socket, int pidfd_to) {
  ::alarm(60);  // in case the watcher dies
  const base::unique_fd self = own_pidfd();
  const int number = self.get();
  const std::array<std::byte, 1> packet{};
  static_cast<void>(transport::send_packet(pidfd_to, packet, std::span(&number, 1)));
  ::close(socket);
  if (holder == holder::child_execs) {
    ::execl("/proc/self/exe", "fence-child", "--sleep", nullptr);
    ::_exit(9);
  }
  if (holder == holder::child_exits) {
    ::usleep(300'000);
    std::exit(0);  // NOLINT(concurrency-mt-unsafe): as a program exits
  }
  for (;;) {
    ::pause();
  }
}

/// Forks a child and returns its pidfd. Runs the library's handlers or not (as vfork and clone).
base::unique_fd start_child(holder holder, int socket) {
  std::array<int, 2> ends{};
  base::checked("run victim", {}, "socketpair", [&] {
    return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data());
  });
  const base::unique_fd near(ends[0]);
  const base::unique_fd far(ends[1]);
  const pid_t child = holder == holder::child
                          ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
                          : ::fork();
  if (child == 0) {
    run_child(holder, socket, far.get());
  }
  std::array<std::byte, 1> buffer{};
  if (!transport::wait_readable(near.get(), std::chrono::seconds(20))) {
    throw std::runtime_error("the child does not respond");
  }
  auto got = transport::receive_packet(near.get(), buffer);
  if (got.descriptors.empty()) {
    throw std::runtime_error("the child has no pidfd");
  }
  return std::move(got.descriptors.front());
}

void become_unprivileged() {
  constexpr uid_t user = 1000;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 ||
      ::setresuid(user, user, user) != 0) {
    throw std::runtime_error("cannot become uid 1000");
  }
}

void send(int socket, const greeting& greeting, std::span<const int> files) {
  if (transport::send_packet(socket, std::as_bytes(std::span(&greeting, 1)), files) !=
      transport::send_result::sent) {
    throw std::runtime_error("the watcher has exited");
  }
}

void run(const victim_options& options, int socket) {
  if (options.unprivileged != 0) {
    become_unprivileged();
  }
  if (options.ends == ending::aborted) {
    rlimit core{};
    ::getrlimit(RLIMIT_CORE, &core);
    core.rlim_cur = core.rlim_max;
    ::setrlimit(RLIMIT_CORE, &core);
  }
  const int life = base::life_pipe();
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  const auto& gpus = driver::visible_gpus();
  const bool peer = options.does == work::peer_kernel || options.does == work::peer_copies;
  const std::size_t own = peer ? 1 : 0;
  if (gpus.size() <= own) {
    throw std::runtime_error("needs two GPUs");
  }
  check(cu->cuCtxSetCurrent(driver::primary_context(gpus[own].handle, "run victim", {})),
        "cuCtxSetCurrent");
  const CUmemGenericAllocationHandle memory = make(cu, gpus[0].handle, shared_bytes);
  int exported = -1;
  check(cu->cuMemExportToShareableHandle(
            &exported, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  const std::array<CUdevice, 1> users{gpus[own].handle};
  const CUdeviceptr target = map(cu, memory, shared_bytes, users);
  for (std::uint32_t i = 0; i < options.extra_gib; ++i) {
    static_cast<void>(map(cu, make(cu, gpus[own].handle, chunk_bytes), chunk_bytes, users));
  }
  gpu_work writing(options.does, target);
  writing.begin();

  greeting hello;
  hello.files = static_cast<std::uint32_t>(driver_files().size());
  const base::unique_fd pidfd = own_pidfd();
  std::vector<int> files{exported, pidfd.get(), life};
  base::unique_fd child;
  if (options.others >= holder::child && options.others <= holder::child_execs) {
    ::usleep(50'000);
    child = start_child(options.others, socket);
    hello.has_child = 1;
    files.push_back(child.get());
  } else if (options.others == holder::bystander) {
    for (const int fd : driver_files()) {
      files.push_back(fd);
    }
  } else if (options.others == holder::exported) {
    files.push_back(exported);
  }
  send(socket, hello, files);
  ::close(exported);

  // A full queue makes the driver block: this thread runs at the GPU's speed.
  while (!transport::wait_readable(socket, std::chrono::milliseconds(5))) {
    writing.feed(200);
  }
  if (options.ends == ending::execs) {
    ::execl("/proc/self/exe", "fence-victim", "--sleep", nullptr);
  }
  ::_exit(options.ends == ending::exits ? 0 : 8);
}

}  // namespace

void run_victim(const victim_options& options, int socket) {
  try {
    run(options, socket);
  } catch (const std::exception& why) {
    greeting refusal;
    std::strncpy(refusal.failure, why.what(), sizeof refusal.failure - 1);
    static_cast<void>(transport::send_packet(socket, std::as_bytes(std::span(&refusal, 1)), {}));
  }
  ::_exit(7);
}

}  // namespace gpushm::fence_rounds
