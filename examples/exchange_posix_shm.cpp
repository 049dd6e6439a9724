// SPDX-License-Identifier: Apache-2.0
// A common handshake: one process writes a CUDA IPC handle and a flag to POSIX shared memory, the
// other polls the flag. With a ticket instead of the 64 raw bytes it also works if both are PID 1
// of their containers, and if the tensor is in the middle of an allocation. If the exporter has
// died, the import fails instead of mapping other memory.
//
//   exchange_posix_shm export NAME    needs a GPU; NAME begins with a slash
//   exchange_posix_shm import NAME
//
// Containers need a common /dev/shm for this (one IPC namespace, or a volume), and export_memory
// does not notify importers when the memory is freed. exchange_file.cpp needs only a directory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <gpushm/gpushm.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda_memory.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::size_t size_bytes = 1 << 20;
constexpr unsigned char value = 5;

/// Mapped by both processes.
struct mailbox {
  enum : std::uint32_t { empty, ready, done };
  std::atomic<std::uint32_t> flag;
  std::uint32_t length;  // of the ticket, which varies
  std::array<std::byte, 4096> ticket;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);  // required between processes

/// Throws after 60 s: the other side may have died.
template <typename Predicate>
void wait_until(const char* event, Predicate&& predicate) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error(std::string("timed out after 60 s waiting for ") + event);
    }
    std::this_thread::sleep_for(1ms);
  }
}

/// Maps the mailbox in the shared memory `fd` and closes `fd`.
class mapped_mailbox {
 public:
  explicit mapped_mailbox(int fd)
      : address_(::mmap(nullptr, sizeof(mailbox), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
    ::close(fd);
    if (address_ == MAP_FAILED) {
      throw std::runtime_error("mmap failed");
    }
  }
  mapped_mailbox(const mapped_mailbox&) = delete;
  mapped_mailbox& operator=(const mapped_mailbox&) = delete;
  ~mapped_mailbox() { ::munmap(address_, sizeof(mailbox)); }
  mailbox* operator->() const { return static_cast<mailbox*>(address_); }

 private:
  void* address_;
};

int export_as(const char* name) {
  const auto tensor = cuda_memory::try_allocate(size_bytes);
  if (!tensor) {
    std::fputs("exchange_posix_shm: this example needs a GPU\n", stderr);
    return 1;
  }
  tensor->fill(value);  // complete before the ticket is published

  // Always a new object: an importer must not read the mailbox of a dead exporter.
  ::shm_unlink(name);
  const int fd = ::shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(mailbox)) != 0) {
    throw std::runtime_error(std::string("cannot create shared memory ") + name);
  }
  const mapped_mailbox box(fd);  // zero: empty

  const auto ticket = gpushm::export_memory(tensor->data(), size_bytes);
  std::copy(ticket.begin(), ticket.end(), box->ticket.begin());
  box->length = static_cast<std::uint32_t>(ticket.size());
  box->flag.store(mailbox::ready, std::memory_order_release);
  std::printf("exported %zu bytes\n", size_bytes);
  std::fflush(stdout);

  // The only sign that the memory may be freed.
  wait_until("the importer", [&] { return box->flag.load() == mailbox::done; });
  ::shm_unlink(name);
  return 0;
}

int import_as(const char* name) {
  // Reopened each time: a live exporter replaces the object of a dead one.
  std::optional<mapped_mailbox> box;
  wait_until("the exporter's ticket", [&] {
    const int fd = ::shm_open(name, O_RDWR, 0);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0 || status.st_size != sizeof(mailbox)) {
      ::close(fd);  // does not exist, or has no size yet
      return false;
    }
    box.emplace(fd);
    return (*box)->flag.load(std::memory_order_acquire) == mailbox::ready;
  });
  const std::size_t length = (*box)->length;
  if (length > (*box)->ticket.size()) {
    throw std::runtime_error("not a ticket");
  }
  const std::vector<std::byte> ticket((*box)->ticket.begin(),
                                      (*box)->ticket.begin() + static_cast<long>(length));
  {
    const auto imported = gpushm::import_memory(ticket);
    std::vector<std::byte> bytes(imported.size_bytes());
    imported.read(0, bytes);  // or launch a kernel on imported.data()
    const auto sum = std::accumulate(
        bytes.begin(), bytes.end(), std::size_t{0}, [](std::size_t partial, auto byte) {
          return partial + std::to_integer<std::size_t>(byte);
        });
    std::printf("the sum of %zu bytes is %zu\n", bytes.size(), sum);
  }  // unmapped before the exporter is notified
  (*box)->flag.store(mailbox::done, std::memory_order_release);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc == 3 ? argv[1] : "";
  try {
    if (role == "export") {
      return export_as(argv[2]);
    }
    if (role == "import") {
      return import_as(argv[2]);
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "exchange_posix_shm: %s\n", failure.what());
    return 1;
  }
  std::fputs("usage: exchange_posix_shm export|import NAME\n", stderr);
  return 2;
}
