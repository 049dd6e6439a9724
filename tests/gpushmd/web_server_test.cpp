// SPDX-License-Identifier: Apache-2.0
// The agent's HTTP responses, also to hostile clients.
#include "apps/gpushmd/web_server.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm::agent {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

/// `address`: an address of the network 127/8.
base::unique_fd connect_to(int port, in_addr_t address = INADDR_LOOPBACK) {
  base::unique_fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return socket;
}

// Data received until the peer closes the connection, or for at most 10 s without data.
std::string receive_all(const base::unique_fd& socket) {
  std::string text;
  for (;;) {
    pollfd waiting{socket.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 10'000) <= 0) {
      return text + "(no more data within 10 s)";
    }
    char part[4'096];
    const ssize_t got = ::read(socket.get(), part, sizeof part);
    if (got <= 0) {
      return text;
    }
    text.append(part, static_cast<std::size_t>(got));
  }
}

void send_all(const base::unique_fd& socket, const std::string& request) {
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
}

std::string send_request(int port, const std::string& request) {
  const base::unique_fd socket = connect_to(port);
  send_all(socket, request);
  return receive_all(socket);
}

std::string get(int port, const std::string& path) {
  return send_request(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

class agent_web_server : public ::testing::Test {
 protected:
  std::atomic<bool> alive_{true};
  std::atomic<bool> ready_{false};
  web_server server_{"127.0.0.1:0",
                     {[this] { return alive_ ? std::string() : std::string("stuck"); },
                      [this] { return ready_ ? std::string() : std::string("not yet"); },
                      [] { return std::string("gpushm_x 1\n"); }}};
};

TEST_F(agent_web_server, serves_probes_and_metrics) {
  EXPECT_THAT(get(server_.port(), "/healthz"), StartsWith("HTTP/1.1 200 OK"));
  const std::string before = get(server_.port(), "/readyz");
  EXPECT_THAT(before, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(before, HasSubstr("not yet\n"));
  ready_ = true;
  EXPECT_THAT(get(server_.port(), "/readyz"), StartsWith("HTTP/1.1 200 OK"));
  const std::string metrics = get(server_.port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_THAT(metrics, HasSubstr("gpushm_x 1\n"));
  EXPECT_THAT(get(server_.port(), "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get(server_.port(), "/../etc/passwd"),
              AnyOf(StartsWith("HTTP/1.1 404"), StartsWith("HTTP/1.1 400")));
}

TEST_F(agent_web_server, reports_stuck_agent) {
  alive_ = false;
  const std::string reply = get(server_.port(), "/healthz");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(reply, HasSubstr("\r\n\r\nstuck\n"));
  alive_ = true;
  EXPECT_THAT(get(server_.port(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(agent_web_server, head_returns_headers_and_405_lists_methods) {
  const std::string head =
      send_request(server_.port(), "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  EXPECT_THAT(send_request(server_.port(), "HEAD /readyz HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(send_request(server_.port(), "PUT /healthz HTTP/1.1\r\n\r\n"),
              HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

TEST_F(agent_web_server, bad_request_is_reported) {
  EXPECT_THAT(send_request(server_.port(), "what is this\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(send_request(server_.port(), "GET /healthz HTTP/2\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(send_request(server_.port(), "POST /healthz HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(send_request(server_.port(),
                           "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

TEST_F(agent_web_server, connection_flood_is_bounded_and_delays_no_probe) {
  const auto count = [] {
    return gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  };
  const std::size_t before = count();
  std::vector<base::unique_fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(connect_to(server_.port()));
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(get(server_.port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::scaled_timeout(1800ms));
  // This process's hundred ends, and the connections that the server keeps.
  EXPECT_LE(count(), before + 100 + 32);
}

std::vector<base::unique_fd> silent_connections(int port, in_addr_t address) {
  std::vector<base::unique_fd> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(connect_to(port, address));
  }
  return all;
}

/// A request that is answered has been accepted, and with it all connections before it.
void expect_all_accepted(int port) {
  EXPECT_THAT(get(port, "/healthz"), StartsWith("HTTP/1.1 200"));
}

constexpr web_limits patient{.connections = 32, .timeout = 120s};
constexpr in_addr_t other_address = INADDR_LOOPBACK + 1;

TEST(agent_web_server_flood, does_not_close_a_response_that_is_being_written) {
  // More than the kernel buffers of both ends.
  const std::string body(std::size_t{48} << 20U, 'x');
  const auto nothing = [] { return std::string(); };
  const web_server server("127.0.0.1:0", {nothing, nothing, [&] { return body; }}, patient);
  const base::unique_fd slow = connect_to(server.port());
  send_all(slow, "GET /metrics HTTP/1.1\r\n\r\n");
  pollfd answered{slow.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&answered, 1, 60'000), 1);
  const auto flood = silent_connections(server.port(), INADDR_LOOPBACK);
  expect_all_accepted(server.port());
  EXPECT_THAT(receive_all(slow).size(), ::testing::Gt(body.size()));
}

TEST(agent_web_server_flood, does_not_close_connections_of_another_address) {
  const auto nothing = [] { return std::string(); };
  const web_server server("127.0.0.1:0", {nothing, nothing, nothing}, patient);
  const base::unique_fd slow = connect_to(server.port());
  const auto flood = silent_connections(server.port(), other_address);
  expect_all_accepted(server.port());
  send_all(slow, "GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(receive_all(slow), StartsWith("HTTP/1.1 200"));
}

TEST_F(agent_web_server, silent_connection_is_closed) {
  const base::unique_fd silent = connect_to(server_.port());
  EXPECT_EQ(receive_all(silent), "");
}

TEST(agent_web_server_address, any_address_accepts_ipv4_and_ipv6) {
  const auto nothing = [] { return std::string(); };
  const web_server server("[::]:0", {nothing, nothing, nothing});
  EXPECT_THAT(get(server.port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  const base::unique_fd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(static_cast<std::uint16_t>(server.port()));
  to.sin6_addr = in6addr_loopback;
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    GTEST_SKIP() << "no IPv6: the server fell back to IPv4, which works";
  }
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  EXPECT_THAT(receive_all(socket), StartsWith("HTTP/1.1 200"));
}

TEST(agent_web_server_address, invalid_address_is_rejected) {
  const auto text_of = [](const std::string& address) {
    try {
      const web_server server(address, {});
    } catch (const error& why) {
      return std::string(why.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text_of("9410"),
            "listen \"9410\": it is not an IP address with a port (use 0.0.0.0:9410 or [::]:9410)");
  EXPECT_EQ(text_of("127.0.0.1:99999"),
            "listen \"127.0.0.1:99999\": it is not an IP address with a port (use 0.0.0.0:9410 or "
            "[::]:9410)");
}

TEST(agent_web_server_address, in_use_is_reported) {
  const web_sources sources{
      [] { return std::string(); }, [] { return std::string(); }, [] { return std::string(); }};
  const web_server first("127.0.0.1:0", sources);
  const std::string address = "127.0.0.1:" + std::to_string(first.port());
  try {
    const web_server second(address, sources);
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(std::string(why.what()),
              "listen \"" + address +
                  "\": bind: Address already in use (EADDRINUSE) (choose another port, or none: "
                  "--listen off)");
  }
}

}  // namespace
}  // namespace gpushm::agent
