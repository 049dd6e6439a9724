// SPDX-License-Identifier: Apache-2.0
// Servers that are not API servers, or are hostile: clear errors, and no hangs.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::client;
using gpushm::api_client::client_options;
using gpushm::base::unique_fd;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// After the first data on a connection, sends `head` and then repeatedly `more`, with `pause` in
/// between, until the peer closes the connection.
class raw_server {
 public:
  raw_server(std::string head, std::string more = {}, milliseconds pause = milliseconds(0))
      : head_(std::move(head)), more_(std::move(more)), pause_(pause) {
    listening_ = unique_fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  raw_server(const raw_server&) = delete;
  raw_server& operator=(const raw_server&) = delete;
  ~raw_server() {
    thread_.request_stop();
    ::shutdown(listening_.get(), SHUT_RDWR);
  }
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const unique_fd peer(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::array<char, 4096> request{};
      if (peer && ::recv(peer.get(), request.data(), request.size(), 0) > 0) {
        send_all(peer.get(), stop);
      }
    }
  }
  void send_all(int peer, const std::stop_token& stop) const {
    bool is_open = send(peer, head_);
    while (is_open && !more_.empty() && !stop.stop_requested()) {
      is_open = send(peer, more_);
      if (pause_.count() > 0) {
        pollfd poll_fd{peer, POLLRDHUP, 0};
        is_open = is_open && ::poll(&poll_fd, 1, static_cast<int>(pause_.count())) == 0;
      }
    }
    ::shutdown(peer, SHUT_WR);
  }
  static bool send(int peer, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  std::string head_;
  std::string more_;
  milliseconds pause_;
  unique_fd listening_;
  std::string url_;
  std::jthread thread_;
};

constexpr const char* json_head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";

std::string whole(const std::string& body, const std::string& type = "application/json") {
  return "HTTP/1.1 200 OK\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

client_options quick() {
  client_options options;
  options.request_timeout = gpushm_testing::scaled_timeout(milliseconds(5'000));
  options.watch_silence = options.request_timeout;
  options.max_response_bytes = 1UL << 20U;
  return options;
}

std::string get_failure(const raw_server& server, const client_options& options = quick()) {
  return failure_of([&] { (void)client({.url = server.url()}, options).get("/x"); });
}
std::string watch_failure(const raw_server& server, const client_options& options = quick()) {
  return failure_of(
      [&] { client({.url = server.url()}, options).watch("/x", "1", {}, [](const auto&) {}, {}); });
}

TEST(rest_hostile, endless_body_is_rejected) {
  const raw_server server(std::string(json_head) + "\r\n{\"a\":\"", std::string(65'536, 'a'));
  EXPECT_EQ(get_failure(server), "get \"/x\": the reply exceeds 1 MiB (request less data)");
}

TEST(rest_hostile, endless_headers_are_rejected) {
  const raw_server server(json_head, "X-More: " + std::string(1'000, 'a') + "\r\n");
  EXPECT_EQ(get_failure(server),
            "get \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
  EXPECT_EQ(watch_failure(server),
            "watch \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
}

TEST(rest_hostile, endless_interim_responses_are_rejected) {
  const raw_server server("HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(get_failure(server),
            "get \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
}

TEST(rest_hostile, non_object_body_is_rejected) {
  const std::string expected =
      "get \"/x\": the reply is not a JSON object (check that the URL is the API server's)";
  for (const std::string& body : {std::string("{\"a\":"),
                                  std::string("[]"),
                                  std::string("7"),
                                  std::string(),
                                  std::string("{}{}"),
                                  std::string("{\"a\":\"\xff\"}")}) {
    EXPECT_EQ(get_failure(raw_server(whole(body))), expected) << body;
  }
  EXPECT_EQ(get_failure(raw_server(whole("{\"a\":" + std::string(500'000, '[')))), expected);
  EXPECT_EQ(get_failure(
                raw_server(whole("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"))),
            expected);
}

TEST(rest_hostile, wrong_content_type_is_named) {
  EXPECT_EQ(get_failure(raw_server(whole("<html>", "text/html; charset=utf-8"))),
            "get \"/x\": the reply's content type is \"text/html; charset=utf-8\", not "
            "application/json (check "
            "that the URL is the API server's)");
  EXPECT_EQ(get_failure(raw_server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")),
            "get \"/x\": the reply's content type is missing, not application/json (check that the "
            "URL is the "
            "API server's)");
}

TEST(rest_hostile, redirect_is_not_followed) {
  EXPECT_EQ(get_failure(raw_server("HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\n"
                                   "Content-Length: 0\r\n\r\n")),
            "get \"/x\": the server replied with 302 and a redirect to "
            "\"https://evil.example/\"; redirects are not followed (check that the URL is the API "
            "server's)");
}

TEST(rest_hostile, non_http_reply_is_reported) {
  const std::string failure = get_failure(raw_server("SSH-2.0-OpenSSH_9.2\r\n"));
  EXPECT_THAT(failure, ::testing::StartsWith("get \"/x\": the server at http://127.0.0.1:"));
  EXPECT_THAT(failure,
              ::testing::EndsWith(" does not use HTTP/1.1 (check that the URL is the API "
                                  "server's)"));
}

TEST(rest_hostile, truncated_reply_is_reported) {
  const raw_server server(std::string(json_head) + "Content-Length: 100\r\n\r\n{");
  EXPECT_EQ(
      get_failure(server),
      "get \"/x\": the connection to " + server.url() +
          " was lost before the response was complete (try again; check the API server's log)");
}

TEST(rest_hostile, slow_drip_ends_at_the_deadline) {
  client_options options = quick();
  options.request_timeout = milliseconds(300);
  options.watch_silence = milliseconds(300);
  const raw_server body(
      std::string(json_head) + "Content-Length: 1000000\r\n\r\n", " ", milliseconds(20));
  EXPECT_EQ(get_failure(body, options),
            "get \"/x\": no reply within 0.3 s (check whether the API server is overloaded)");
  const raw_server stream(std::string(json_head) + "\r\n", " ", milliseconds(20));
  EXPECT_EQ(
      watch_failure(stream, options),
      "watch \"/x\": no data on the stream for 0.3 s (check whether the API server is overloaded"
      ")");
  const raw_server head("HTTP/1.1 200 OK\r\n", "X", milliseconds(20));
  EXPECT_EQ(watch_failure(head, options),
            "watch \"/x\": no reply within 0.3 s (check whether the API server is overloaded)");
}

TEST(rest_hostile, endless_event_is_rejected) {
  const raw_server server(std::string(json_head) + "\r\n{\"type\":\"", std::string(65'536, 'a'));
  EXPECT_EQ(watch_failure(server), "watch \"/x\": an event exceeds 1 MiB (watch fewer objects)");
}

TEST(rest_hostile, malformed_event_lines_are_rejected) {
  for (const char* line : {"{}\n",
                           "7\n",
                           "{\"type\":7,\"object\":{}}\n",
                           "{\"type\":\"ADDED\",\"object\":[]}\n",
                           "{\n"}) {
    EXPECT_EQ(watch_failure(raw_server(std::string(json_head) + "\r\n" + line)),
              "watch \"/x\": a line of the stream is not an event (check that the URL is the API "
              "server's)")
        << line;
  }
  EXPECT_EQ(
      watch_failure(raw_server(std::string(json_head) + "\r\n{\"type\":\"GONE\",\"object\":{}}\n")),
      "watch \"/x\": unknown event type \"GONE\" (check that the URL is the API "
      "server's)");
}

TEST(rest_hostile, malformed_errors_are_reported) {
  EXPECT_EQ(get_failure(raw_server("HTTP/1.1 404 -\r\nContent-Type: text/plain\r\n"
                                   "Content-Length: 19\r\n\r\n404 page not found\n")),
            "get \"/x\": the API server replied with 404: 404 page not found");
  const std::string status =
      R"({"kind":"Status","code":99999999999,"reason":7,"message":[],"details":{"retryAfterSeconds":-1}})";
  EXPECT_EQ(get_failure(raw_server("HTTP/1.1 500 -\r\nContent-Type: application/json\r\n"
                                   "Content-Length: " +
                                   std::to_string(status.size()) + "\r\n\r\n" + status)),
            "get \"/x\": the API server replied with 500 (check the API server's log)");
}

TEST(rest_hostile, malformed_and_endless_lists_are_rejected) {
  const auto list_failure = [](const raw_server& server) {
    return failure_of([&] { (void)client({.url = server.url()}, quick()).list("/x"); });
  };
  EXPECT_EQ(list_failure(raw_server(whole("{\"items\":7,\"metadata\":{}}"))),
            "list \"/x\": the reply is not a list (check that the path is a collection's)");
  EXPECT_EQ(list_failure(raw_server(whole(R"({"items":[],"metadata":{"continue":"more"}})"))),
            "list \"/x\": a page without items announces more items (check the API server's log)");
  EXPECT_EQ(list_failure(raw_server(whole("{\"items\":[{\"a\":\"" + std::string(900'000, 'a') +
                                          R"("}],"metadata":{"continue":"more"}})"))),
            "list \"/x\": the pages together exceed 8 MiB (request less data)");
}

}  // namespace
}  // namespace gpushm_tests
