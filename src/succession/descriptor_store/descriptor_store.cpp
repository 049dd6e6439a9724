// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/descriptor_store.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/send_header.hpp"
#include "succession/descriptor_store/notification.hpp"

namespace gpushm::keeper {

namespace {

constexpr std::string_view operation = "store descriptors";
error timed_out(std::string_view verb) {
  return {errc::timed_out,
          std::string(operation),
          {},
          "the keeper did not " + std::string(verb) + " in time",
          "look at the log of systemd or gpushm-keeper"};
}

error gone(std::string_view path, int why) {
  return {errc::broker_unreachable,
          std::string(operation),
          std::string(path),
          "no keeper reads the notification socket: " + base::errno_text(why),
          "start the program by systemd or gpushm-keeper, or unset NOTIFY_SOCKET"};
}

}  // namespace

std::optional<descriptor_store> descriptor_store::from_environment() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code of this program changes the environment
  const char* const text = std::getenv("NOTIFY_SOCKET");
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  const std::string_view path(text);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((path.front() != '/' && path.front() != '@') || path.size() >= sizeof(address.sun_path)) {
    throw error(errc::invalid_argument,
                std::string(operation),
                std::string(path),
                "NOTIFY_SOCKET is neither an absolute path nor an abstract name of a socket",
                "unset NOTIFY_SOCKET");
  }
  std::memcpy(&address.sun_path[0], path.data(), path.size());
  if (path.front() == '@') {
    address.sun_path[0] = '\0';
  }
  base::unique_fd socket(base::checked(operation, path, "socket", [] {
    return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                             (path.front() == '@' ? 0 : 1));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as connect expects
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    throw gone(path, errno);
  }
  return descriptor_store(std::move(socket));
}

std::uint64_t descriptor_store::capacity() noexcept {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code of this program changes the environment
  const char* const text = std::getenv(capacity_variable.data());
  return text == nullptr ? 0 : base::number<std::uint64_t>(text).value_or(0);
}

std::string_view to_string(start_reason why) noexcept {
  switch (why) {
    case start_reason::takeover:
      return "takeover";
    case start_reason::failed_takeover:
      return "failed-takeover";
    case start_reason::ordinary:
      break;
  }
  return {};
}

start_reason descriptor_store::reason_of_start() noexcept {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code of this program changes the environment
  const char* const text = std::getenv(start_variable.data());
  for (const start_reason each : {start_reason::takeover, start_reason::failed_takeover}) {
    if (text != nullptr && text == to_string(each)) {
      return each;
    }
  }
  return start_reason::ordinary;
}

void descriptor_store::send(std::string_view text,
                            std::span<const int> descriptors,
                            std::chrono::milliseconds timeout) {
  transport::send_header header(std::as_bytes(std::span(text)), descriptors);
  const auto deadline = base::deadline_after(timeout);
  for (;;) {
    if (base::retry([&] { return ::sendmsg(socket_.get(), &header.get(), MSG_NOSIGNAL); }) >= 0) {
      return;
    }
    if (errno == ECONNREFUSED || errno == ENOTCONN || errno == ECONNRESET) {
      throw gone("NOTIFY_SOCKET", errno);
    }
    // ETOOMANYREFS: descriptors in flight, which the keeper has not received yet.
    if (errno != EAGAIN && errno != ETOOMANYREFS && errno != ENOBUFS) {
      base::throw_errno(errno, operation, {}, "sendmsg");
    }
    const int why = errno;
    const auto left = base::time_left(deadline);
    if (left <= std::chrono::milliseconds(0)) {
      throw timed_out("read its notifications");
    }
    if (why == EAGAIN) {
      // A full queue of the peer is not signalled to every sender: poll again after a while.
      pollfd entry{socket_.get(), POLLOUT, 0};
      static_cast<void>(::poll(&entry, 1, 10));
    } else {
      base::pause_before_retry(std::chrono::milliseconds(1));
    }
  }
}

void descriptor_store::put(std::string_view name,
                           std::span<const int> descriptors,
                           std::chrono::milliseconds timeout) {
  if (!is_valid_name(name)) {
    throw error(errc::invalid_argument,
                std::string(operation),
                std::string(name),
                "not a name of stored descriptors",
                "use 1 to 255 printable characters without a colon");
  }
  // FDPOLL=0: systemd would close a descriptor with POLLHUP, such as a client's closed socket.
  send("FDSTORE=1\nFDPOLL=0\nFDNAME=" + std::string(name), descriptors, timeout);
}

void descriptor_store::remove(std::string_view name, std::chrono::milliseconds timeout) {
  send("FDSTOREREMOVE=1\nFDNAME=" + std::string(name), {}, timeout);
}

void descriptor_store::ready(std::chrono::milliseconds timeout) {
  send("READY=1", {}, timeout);
}

bool descriptor_store::is_keeper_gone() {
  try {
    send("STATUS=", {}, std::chrono::milliseconds(0));
  } catch (const error& why) {
    if (why.code() != errc::timed_out && why.code() != errc::broker_unreachable) {
      throw;
    }
    return why.code() == errc::broker_unreachable;
  }
  return false;
}

void descriptor_store::alive() {
  try {
    send("WATCHDOG=1", {}, std::chrono::milliseconds(0));
  } catch (const error& why) {
    if (why.code() != errc::timed_out) {
      throw;
    }
  }
}

void descriptor_store::barrier(std::chrono::milliseconds timeout) {
  if (const auto problem = flush(timeout)) {
    throw error(*problem);
  }
}

std::optional<error> descriptor_store::flush(std::chrono::milliseconds timeout) {
  return reply_to("BARRIER=1", timeout);
}

std::optional<error> descriptor_store::confirm(std::string_view name,
                                               std::chrono::milliseconds timeout) {
  return reply_to("BARRIER=1\nFDNAME=" + std::string(name), timeout);
}

base::unique_fd descriptor_store::begin_confirm(std::string_view name) {
  return ask("BARRIER=1\nFDNAME=" + std::string(name), std::chrono::milliseconds(0));
}

base::unique_fd descriptor_store::ask(std::string_view barrier, std::chrono::milliseconds timeout) {
  std::array<int, 2> ends{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  base::unique_fd read_end(ends[0]);
  const base::unique_fd write_end(ends[1]);
  send(barrier, std::span(&ends[1], 1), timeout);
  return read_end;
}

std::optional<error> descriptor_store::reply_to(std::string_view barrier,
                                                std::chrono::milliseconds timeout) {
  const base::unique_fd reply = ask(barrier, timeout);
  if (!transport::wait_readable(reply.get(), timeout)) {
    throw timed_out("process its notifications");
  }
  return reply_in(reply.get());
}

std::optional<error> descriptor_store::reply_in(int pipe) {
  std::array<char, 256> text{};
  const auto size =
      base::checked(operation, {}, "read", [&] { return ::read(pipe, text.data(), text.size()); });
  if (size == 0) {
    return std::nullopt;
  }
  return error(errc::too_many_descriptors,
               std::string(operation),
               {},
               std::string(text.data(), static_cast<std::size_t>(size)),
               "raise the keeper's open file limit and --max-descriptors");
}

std::optional<std::chrono::microseconds> watchdog_timeout() {
  const auto number_in = [](const char* variable) -> std::optional<std::int64_t> {
    const char* const text =
        std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): before threads
    if (text == nullptr) {
      return std::nullopt;
    }
    const auto number = base::number<std::int64_t>(text);
    if (!number || *number <= 0) {
      throw error(errc::invalid_argument,
                  "report to the keeper",
                  variable,
                  "\"" + std::string(text) + "\" is not a positive number",
                  "start the program by systemd or gpushm-keeper, or unset the variable");
    }
    return number;
  };
  const auto timeout = number_in("WATCHDOG_USEC");
  const auto process = number_in("WATCHDOG_PID");
  if (!timeout || (process && *process != ::getpid())) {
    return std::nullopt;
  }
  return std::chrono::microseconds(*timeout);
}

}  // namespace gpushm::keeper
