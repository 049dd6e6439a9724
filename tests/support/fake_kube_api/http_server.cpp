// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/http_server.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"

namespace gpushm::testing {

namespace {

constexpr std::size_t max_bytes = 32UL << 20U;

std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = text[at] == '%' && at + 2 < text.size()
                          ? base::number<unsigned>(text.substr(at + 1, 2), 16)
                          : std::nullopt;
    if (byte) {
      out += static_cast<char>(*byte);
      at += 2;
    } else {
      out += text[at] == '+' ? ' ' : text[at];
    }
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  });
  return out;
}

bool read_head(std::string_view head, http_request& out) {
  const auto lines = base::split(head, "\r\n");
  if (lines.empty()) {
    return false;
  }
  const auto words = base::split(lines.front(), " ");
  if (words.size() != 3) {
    return false;
  }
  out.method = words[0];
  const std::string_view target = words[1];
  const std::size_t mark = std::min(target.find('?'), target.size());
  out.path = decoded(target.substr(0, mark));
  const std::string_view query = mark < target.size() ? target.substr(mark + 1) : "";
  out.query = decoded(query);
  for (const std::string_view each : base::split(query, "&")) {
    const std::size_t equals = std::min(each.find('='), each.size());
    out.parameters[decoded(each.substr(0, equals))] =
        equals < each.size() ? decoded(each.substr(equals + 1)) : "";
  }
  for (const std::string_view line : lines) {
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && line.data() != lines.front().data()) {
      out.headers[lower(line.substr(0, colon))] = base::trim(line.substr(colon + 1));
    }
  }
  return true;
}

/// Nullopt if the peer has closed or does not send HTTP.
std::optional<http_request> next_request(server_connection& connection, std::string& buffer) {
  std::size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
    const std::string more = connection.read();
    if (more.empty() || buffer.size() > max_bytes) {
      return std::nullopt;
    }
    buffer += more;
    // A TLS client on a plain port.
    if (buffer.front() < 'A' || buffer.front() > 'Z') {
      return std::nullopt;
    }
  }
  http_request request;
  if (!read_head(std::string_view(buffer).substr(0, end), request)) {
    return std::nullopt;
  }
  const auto length = request.headers.find("content-length");
  const std::size_t size = length == request.headers.end()
                               ? 0
                               : base::number<std::size_t>(length->second).value_or(max_bytes + 1);
  if (size > max_bytes) {
    return std::nullopt;
  }
  buffer.erase(0, end + 4);
  while (buffer.size() < size) {
    const std::string more = connection.read();
    if (more.empty()) {
      return std::nullopt;
    }
    buffer += more;
  }
  request.body = buffer.substr(0, size);
  buffer.erase(0, size);
  return request;
}

std::string head_of(int status, std::string_view content_type) {
  std::string head("HTTP/1.1 ");
  head.append(std::to_string(status)).append(" -\r\nContent-Type: ").append(content_type);
  return head.append("\r\n");
}

/// For this thread. TLS uses write(2), which raises SIGPIPE.
void ignore_broken_pipes() {
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipes, nullptr);
}

base::unique_fd listen_on(const std::string& address, int port, int& chosen) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* resolved = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &resolved) != 0) {
    throw std::runtime_error("not an address to listen on: " + address);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> first(resolved, &::freeaddrinfo);
  base::unique_fd socket(::socket(first->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (!socket || ::bind(socket.get(), first->ai_addr, first->ai_addrlen) != 0 ||
      ::listen(socket.get(), 128) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    throw std::runtime_error("cannot listen on " + address + ": " + base::errno_text(errno));
  }
  chosen =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return socket;
}

}  // namespace

bool http_answer::send(int status,
                       std::string_view content_type,
                       std::string_view body,
                       const std::vector<std::string>& headers) {
  std::string text = head_of(status, content_type);
  for (const std::string& each : headers) {
    text.append(each).append("\r\n");
  }
  text.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n\r\n");
  return to_.write(text.append(body));
}

bool http_answer::begin(int status, std::string_view content_type) {
  return to_.write(head_of(status, content_type).append("Transfer-Encoding: chunked\r\n\r\n"));
}

bool http_answer::part(std::string_view text) {
  std::string chunk;
  std::size_t size = text.size();
  do {
    chunk.insert(chunk.begin(), "0123456789abcdef"[size % 16]);
    size /= 16;
  } while (size > 0);
  return to_.write(chunk.append("\r\n").append(text).append("\r\n"));
}

http_server::http_server(const std::string& address,
                         int port,
                         const tls_settings* tls,
                         handler handle)
    : tls_(tls), handle_(std::move(handle)), listening_(listen_on(address, port, port_)) {
  acceptor_ = std::thread([this] { accept_all(); });
}

http_server::~http_server() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const served& each : served_) {
      each.connection->cut();
    }
  }
  ::shutdown(listening_.get(), SHUT_RDWR);
  acceptor_.join();
  reap(true);
}

void http_server::accept_all() {
  ignore_broken_pipes();
  while (true) {
    base::unique_fd socket(
        base::retry([&] { return ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
    reap(false);
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return;
    }
    if (!socket) {
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    served& one = served_.emplace_back();
    one.connection = std::make_shared<server_connection>(std::move(socket), tls_, ++accepted_);
    one.thread = std::thread([this, &one, connection = one.connection] {
      ignore_broken_pipes();
      serve(*connection);
      connection->cut();
      const std::lock_guard done(mutex_);
      one.finished = true;
    });
  }
}

void http_server::serve(server_connection& connection) {
  if (!connection.accept()) {
    return;
  }
  std::string buffer;
  while (const auto request = next_request(connection, buffer)) {
    http_answer answer(connection);
    if (!handle_(*request, answer)) {
      return;
    }
  }
}

void http_server::reap(bool every_one) {
  std::list<served> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto each = served_.begin(); each != served_.end();) {
      const auto next = std::next(each);
      if (every_one || each->finished) {
        ended.splice(ended.end(), served_, each);
      }
      each = next;
    }
  }
  // Exiting threads still write to their elements, which stay valid when moved between lists.
  for (served& each : ended) {
    each.thread.join();
  }
}

std::size_t http_server::accepted() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

std::size_t http_server::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      served_.begin(), served_.end(), [](const served& each) { return !each.finished; }));
}

}  // namespace gpushm::testing
