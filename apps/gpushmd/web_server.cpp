// SPDX-License-Identifier: Apache-2.0
// A minimal HTTP server: cpp-httplib 0.11 serves only as many connections at a time as it has
// threads, and a hundred idle connections delayed a probe by three minutes.
#include "apps/gpushmd/web_server.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/post.hpp>
#include <asio/read_until.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

using asio::awaitable;
using asio::ip::tcp;

/// Connections that wait to be accepted need no descriptor. If they do not fit, the kernel drops
/// the first packet of others, which is sent again after a second: a probe's timeout.
constexpr int backlog = 1'024;
constexpr std::size_t max_request_bytes = 8'192;
constexpr std::chrono::milliseconds accept_backoff{50};

auto into(asio::error_code& code) {
  return asio::redirect_error(asio::use_awaitable, code);
}

std::optional<tcp::endpoint> endpoint_of(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  const auto port = base::number<std::uint16_t>(address.substr(colon + 1));
  asio::error_code failed;
  const auto ip = asio::ip::make_address(host, failed);
  return port && !failed ? std::optional(tcp::endpoint(ip, *port)) : std::nullopt;
}

tcp::acceptor listen_on(asio::io_context& io, const std::string& address) {
  auto where = endpoint_of(address);
  if (!where) {
    throw error(errc::invalid_argument,
                "listen",
                address,
                "it is not an IP address with a port",
                "use 0.0.0.0:9410 or [::]:9410");
  }
  tcp::acceptor acceptor(io);
  asio::error_code failed;
  const auto check = [&](const char* call, const asio::error_code& code) {
    if (code) {
      throw error(base::errc_of_errno(code.value()),
                  "listen",
                  address,
                  fmt::format("{}: {}", call, base::errno_text(code.value())),
                  "choose another port, or none: --listen off");
    }
  };
  const bool everywhere = where->address() == asio::ip::address_v6::any();
  acceptor.open(where->protocol(), failed);
  if (everywhere && (failed.value() == EAFNOSUPPORT || failed.value() == EPROTONOSUPPORT)) {
    *where = tcp::endpoint(asio::ip::address_v4::any(), where->port());
    acceptor.open(where->protocol(), failed);
  }
  check("socket", failed);
  acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
  if (where->address() == asio::ip::address_v6::any()) {
    acceptor.set_option(asio::ip::v6_only(false), failed);  // overrides net.ipv6.bindv6only
  }
  acceptor.bind(*where, failed);
  if (everywhere && where->address().is_v6() && failed.value() == EADDRNOTAVAIL) {
    // The kernel has IPv6, but it is disabled (net.ipv6.conf.all.disable_ipv6).
    acceptor.close(failed);
    *where = tcp::endpoint(asio::ip::address_v4::any(), where->port());
    acceptor.open(where->protocol(), failed);
    check("socket", failed);
    acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
    acceptor.bind(*where, failed);
  }
  check("bind", failed);
  acceptor.listen(backlog, failed);
  check("listen", failed);
  return acceptor;
}

std::string reply(std::string_view status,
                  std::string_view type,
                  std::string_view content,
                  std::string_view more_headers = {}) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}{}\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status,
      type,
      more_headers,
      content.size(),
      content);
}

constexpr std::string_view plain = "text/plain; charset=utf-8";
constexpr std::string_view exposition = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

class web_server::impl {
 public:
  impl(const std::string& address, web_sources sources, web_limits limits)
      : sources_(std::move(sources)), limits_(limits), acceptor_(listen_on(io_, address)) {
    port_ = acceptor_.local_endpoint().port();
    asio::co_spawn(io_, accept_loop(), asio::detached);
    thread_ = std::jthread([this] { io_.run(); });
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() { io_.stop(); }

  [[nodiscard]] int port() const noexcept { return port_; }

 private:
  struct connection {
    explicit connection(asio::io_context& io) : socket(io) {}
    void close() {
      asio::error_code ignored;
      socket.close(ignored);
    }
    tcp::socket socket;
    asio::ip::address peer;
    bool is_answered = false;  ///< its response is being written
  };
  using connection_list = std::list<std::shared_ptr<connection>>;  // the oldest first

  awaitable<void> accept_loop() {
    for (;;) {
      asio::error_code code;
      auto accepted = std::make_shared<connection>(io_);
      co_await acceptor_.async_accept(accepted->socket, into(code));
      if (code == asio::error::operation_aborted) {
        co_return;
      }
      if (code) {
        base::log(log_level::warning, "accept: " + code.message());
        asio::steady_timer pause(io_, accept_backoff);
        co_await pause.async_wait(into(code));
        continue;
      }
      accepted->peer = accepted->socket.remote_endpoint(code).address();
      if (open_.size() >= limits_.connections) {
        const auto victim = least_worthy();
        (*victim)->close();
        open_.erase(victim);
      }
      open_.push_back(accepted);
      asio::co_spawn(io_, serve(std::move(accepted)), asio::detached);
    }
  }

  /// A flood from one address closes its own connections, and never a response of another address.
  [[nodiscard]] connection_list::const_iterator least_worthy() const {
    const auto worth = [this](const std::shared_ptr<connection>& each) {
      const auto of_peer =
          std::count_if(open_.begin(), open_.end(), [&](const std::shared_ptr<connection>& other) {
            return other->peer == each->peer;
          });
      return std::pair(-of_peer, each->is_answered);
    };
    return std::min_element(
        open_.begin(),
        open_.end(),
        [&](const std::shared_ptr<connection>& left, const std::shared_ptr<connection>& right) {
          return worth(left) < worth(right);
        });
  }

  awaitable<void> serve(std::shared_ptr<connection> served) {
    tcp::socket& socket = served->socket;
    // Cancels a pending read or write.
    asio::steady_timer deadline(io_, limits_.timeout);
    deadline.async_wait([served](const asio::error_code& cancelled) {
      if (!cancelled) {
        served->close();
      }
    });
    asio::error_code code;
    std::string request;
    co_await asio::async_read_until(
        socket, asio::dynamic_buffer(request, max_request_bytes), "\r\n\r\n", into(code));
    if (!code || code == asio::error::not_found) {
      const std::string text = code ? too_large() : reply_to(request);
      served->is_answered = true;
      co_await asio::async_write(socket, asio::buffer(text), into(code));
      served->is_answered = false;
      socket.shutdown(tcp::socket::shutdown_send, code);
      // If data is unread at the close, the kernel sends RST and the client may lose the response.
      std::array<char, 1'024> rest{};
      while (!code) {
        co_await socket.async_read_some(asio::buffer(rest), into(code));
      }
    }
    served->close();
    open_.remove(served);
  }

  static std::string too_large() {
    return reply("431 Request Header Fields Too Large", plain, "the request is too large\n");
  }

  [[nodiscard]] std::string reply_to(std::string_view request) const {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const auto words = base::split(line, " ");
    if (words.size() != 3 || !words[2].starts_with("HTTP/1.")) {
      return reply("400 Bad Request", plain, "malformed HTTP/1 request\n");
    }
    const bool head = words[0] == "HEAD";
    if (words[0] != "GET" && !head) {
      return reply("405 Method Not Allowed",
                   plain,
                   "only GET and HEAD are supported\n",
                   "\r\nAllow: GET, HEAD");
    }
    std::string text = reply_for_path(words[1].substr(0, words[1].find('?')));
    if (head) {  // the same, without a body
      constexpr std::string_view header_end = "\r\n\r\n";
      text.resize(text.find(header_end) + header_end.size());
    }
    return text;
  }

  [[nodiscard]] std::string reply_for_path(std::string_view path) const {
    if (path == "/healthz") {
      return probe(sources_.not_alive());
    }
    if (path == "/readyz") {
      return probe(sources_.not_ready());
    }
    if (path == "/metrics") {
      return reply("200 OK", exposition, sources_.metrics());
    }
    return reply("404 Not Found", plain, "not found; available: /healthz, /readyz, /metrics\n");
  }

  static std::string probe(const std::string& why_not) {
    return why_not.empty() ? reply("200 OK", plain, "ok\n")
                           : reply("503 Service Unavailable", plain, why_not + "\n");
  }

  web_sources sources_;
  web_limits limits_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  int port_ = 0;
  connection_list open_;
  std::jthread thread_;  // joined before the other members are destroyed
};

bool is_web_address(std::string_view address) {
  return endpoint_of(address).has_value();
}

web_server::web_server(const std::string& address, web_sources sources, web_limits limits)
    : impl_(std::make_unique<impl>(address, std::move(sources), limits)) {}
web_server::~web_server() = default;

int web_server::port() const noexcept {
  return impl_->port();
}

}  // namespace gpushm::agent
