// SPDX-License-Identifier: Apache-2.0
// Two ranks that read each other's GPU memory. Each exports its buffer, exchanges tickets with an
// all-gather, and imports the other rank's buffer. The Unix socket stands for any transport between
// ranks that carries bytes (MPI, gRPC, ZeroMQ, torch.distributed).
//
//   exchange_ranks 0 SOCKET
//   exchange_ranks 1 SOCKET
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <gpushm/gpushm.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda_memory.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::size_t size_bytes = 1 << 20;
constexpr auto timeout = 60s;

/// The other rank. Every wait has a timeout: it may have died.
class peer {
 public:
  peer(int own_rank, const std::string& path)
      : fd_(own_rank == 0 ? accept_at(path) : connect_to(path)) {
    const timeval limit{timeout.count(), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  peer(const peer&) = delete;
  peer& operator=(const peer&) = delete;
  ~peer() { ::close(fd_); }

  /// An all-gather between two ranks: sends `own` and returns the other rank's bytes.
  std::vector<std::byte> exchange(std::span<const std::byte> own) {
    const auto length = static_cast<std::uint32_t>(own.size());
    send(std::as_bytes(std::span(&length, 1)));
    send(own);
    std::uint32_t other_length = 0;
    receive(std::as_writable_bytes(std::span(&other_length, 1)));
    if (other_length > 4096) {
      throw std::runtime_error("not a ticket");
    }
    std::vector<std::byte> other(other_length);
    receive(other);
    return other;
  }
  void barrier() { exchange({}); }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
      throw std::runtime_error("the socket's path is too long");
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
  }

  static int accept_at(const std::string& path) {
    const sockaddr_un address = address_of(path);
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{timeout.count(), 0};
    ::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::unlink(path.c_str());
    int connected = -1;
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::listen(listener, 1) == 0) {
      connected = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
    ::close(listener);
    ::unlink(path.c_str());
    if (connected < 0) {
      throw std::runtime_error("rank 1 did not connect within 60 s");
    }
    return connected;
  }

  static int connect_to(const std::string& path) {
    const sockaddr_un address = address_of(path);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (std::chrono::steady_clock::now() < deadline) {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        return fd;
      }
      ::close(fd);
      std::this_thread::sleep_for(5ms);
    }
    throw std::runtime_error("rank 0 did not accept a connection within 60 s");
  }

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) {
        throw std::runtime_error("the other rank disconnected or did not respond within 60 s");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  void receive(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const auto count = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (count <= 0) {
        throw std::runtime_error("the other rank disconnected or did not respond within 60 s");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  int fd_;
};

unsigned char value_of(int rank) {
  return static_cast<unsigned char>(10 + rank);
}

int run(int rank, const std::string& path) {
  const auto own = cuda_memory::try_allocate(size_bytes);
  if (!own) {
    std::fputs("exchange_ranks: this example needs a GPU\n", stderr);
    return 1;
  }
  own->fill(value_of(rank));  // complete before the other rank can read

  peer other(rank, path);
  const auto ticket = other.exchange(gpushm::export_memory(own->data(), size_bytes));

  auto remote = gpushm::import_memory(ticket);
  std::vector<std::byte> bytes(remote.size_bytes());
  remote.read(0, bytes);  // or launch a kernel on remote.data()
  const auto matching = std::count(bytes.begin(), bytes.end(), std::byte{value_of(1 - rank)});
  std::printf("rank %d: %td of %zu bytes are rank %d's\n", rank, matching, bytes.size(), 1 - rank);

  remote.reset();
  other.barrier();  // the other rank has unmapped `own`: it may be freed
  return matching == static_cast<std::ptrdiff_t>(size_bytes) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view rank = argc == 3 ? argv[1] : "";
  if (rank != "0" && rank != "1") {
    std::fputs("usage: exchange_ranks 0|1 SOCKET\n", stderr);
    return 2;
  }
  try {
    return run(rank == "0" ? 0 : 1, argv[2]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "exchange_ranks: %s\n", failure.what());
    return 1;
  }
}
