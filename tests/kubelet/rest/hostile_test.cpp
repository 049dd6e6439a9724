// SPDX-License-Identifier: Apache-2.0
// Servers that are no API servers, or hostile ones: clear errors, and nothing hangs.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/unique_fd.hpp"
#include "testing/process/deadline.hpp"
#include "tests/kubelet/rest/world.hpp"

namespace gpushm_tests {
namespace {

using gpushm::base::unique_fd;
using gpushm::kube::client;
using gpushm::kube::client_options;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Answers every connection, once it has sent something, with `head`, and then with `more` again
/// and again while the peer takes it and `pause` passes between.
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
    bool goes_on = send(peer, head_);
    while (goes_on && !more_.empty() && !stop.stop_requested()) {
      goes_on = send(peer, more_);
      if (pause_.count() > 0) {
        pollfd look{peer, POLLRDHUP, 0};
        goes_on = goes_on && ::poll(&look, 1, static_cast<int>(pause_.count())) == 0;
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
  options.request_timeout = gpushm_testing::patience(milliseconds(5'000));
  options.watch_silence = options.request_timeout;
  options.max_response_bytes = 1UL << 20U;
  return options;
}

std::string getting(const raw_server& server, const client_options& options = quick()) {
  return failure_of([&] { (void)client({.url = server.url()}, options).get("/x"); });
}
std::string watching(const raw_server& server, const client_options& options = quick()) {
  return failure_of(
      [&] { client({.url = server.url()}, options).watch("/x", "1", {}, [](const auto&) {}, {}); });
}

TEST(rest_hostile, a_body_without_end_is_cut_off) {
  const raw_server server(std::string(json_head) + "\r\n{\"a\":\"", std::string(65'536, 'a'));
  EXPECT_EQ(getting(server), "get \"/x\": the answer has more than 1 MiB (request less at once)");
}

TEST(rest_hostile, headers_without_end_are_cut_off) {
  const raw_server server(json_head, "X-More: " + std::string(1'000, 'a') + "\r\n");
  EXPECT_EQ(getting(server),
            "get \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
  EXPECT_EQ(watching(server),
            "watch \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
}

TEST(rest_hostile, answers_before_the_answer_end_too) {
  const raw_server server("HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(getting(server),
            "get \"/x\": the response header exceeds 64 KiB (check that the URL is the "
            "API server's)");
}

TEST(rest_hostile, what_is_no_json_object_is_refused) {
  const std::string expected =
      "get \"/x\": the answer is not a JSON object (check that the URL is the API server's)";
  for (const std::string& body : {std::string("{\"a\":"),
                                  std::string("[]"),
                                  std::string("7"),
                                  std::string(),
                                  std::string("{}{}"),
                                  std::string("{\"a\":\"\xff\"}")}) {
    EXPECT_EQ(getting(raw_server(whole(body))), expected) << body;
  }
  EXPECT_EQ(getting(raw_server(whole("{\"a\":" + std::string(500'000, '[')))), expected);
  EXPECT_EQ(
      getting(raw_server(whole("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"))),
      expected);
}

TEST(rest_hostile, another_type_is_named) {
  EXPECT_EQ(getting(raw_server(whole("<html>", "text/html; charset=utf-8"))),
            "get \"/x\": the answer is \"text/html; charset=utf-8\", not application/json (check "
            "that the URL is the API server's)");
  EXPECT_EQ(getting(raw_server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")),
            "get \"/x\": the answer is of no type, not application/json (check that the URL is the "
            "API server's)");
}

TEST(rest_hostile, a_redirect_is_not_followed) {
  EXPECT_EQ(getting(raw_server("HTTP/1.1 302 Found\r\nLocation: https://evil.example/\r\n"
                               "Content-Length: 0\r\n\r\n")),
            "get \"/x\": the server answered 302 with a redirect to "
            "\"https://evil.example/\"; redirects are not followed (check that the URL is the API "
            "server's)");
}

TEST(rest_hostile, what_is_no_http_is_told) {
  const std::string failure = getting(raw_server("SSH-2.0-OpenSSH_9.2\r\n"));
  EXPECT_THAT(failure, ::testing::StartsWith("get \"/x\": the server at http://127.0.0.1:"));
  EXPECT_THAT(failure,
              ::testing::EndsWith(" does not use HTTP/1.1 (check that the URL is the API "
                                  "server's)"));
}

TEST(rest_hostile, an_answer_that_stops_halfway_is_told) {
  const raw_server server(std::string(json_head) + "Content-Length: 100\r\n\r\n{");
  EXPECT_EQ(
      getting(server),
      "get \"/x\": the connection to " + server.url() +
          " was lost before the response was complete (try again; check the API server's log)");
}

TEST(rest_hostile, a_drip_ends_with_the_deadline) {
  client_options options = quick();
  options.request_timeout = milliseconds(300);
  options.watch_silence = milliseconds(300);
  const raw_server body(
      std::string(json_head) + "Content-Length: 1000000\r\n\r\n", " ", milliseconds(20));
  EXPECT_EQ(getting(body, options),
            "get \"/x\": no answer within 0.3 s (check whether the API server is overloaded)");
  const raw_server stream(std::string(json_head) + "\r\n", " ", milliseconds(20));
  EXPECT_EQ(
      watching(stream, options),
      "watch \"/x\": no data on the stream for 0.3 s (check whether the API server is overloaded"
      ")");
  const raw_server head("HTTP/1.1 200 OK\r\n", "X", milliseconds(20));
  EXPECT_EQ(watching(head, options),
            "watch \"/x\": no answer within 0.3 s (check whether the API server is overloaded)");
}

TEST(rest_hostile, an_event_without_end_is_cut_off) {
  const raw_server server(std::string(json_head) + "\r\n{\"type\":\"", std::string(65'536, 'a'));
  EXPECT_EQ(watching(server), "watch \"/x\": an event has more than 1 MiB (watch fewer objects)");
}

TEST(rest_hostile, lines_that_are_no_events_are_refused) {
  for (const char* line : {"{}\n",
                           "7\n",
                           "{\"type\":7,\"object\":{}}\n",
                           "{\"type\":\"ADDED\",\"object\":[]}\n",
                           "{\n"}) {
    EXPECT_EQ(watching(raw_server(std::string(json_head) + "\r\n" + line)),
              "watch \"/x\": a line of the stream is not an event (check that the URL is the API "
              "server's)")
        << line;
  }
  EXPECT_EQ(
      watching(raw_server(std::string(json_head) + "\r\n{\"type\":\"GONE\",\"object\":{}}\n")),
      "watch \"/x\": unknown event type \"GONE\" (check that the URL is the API "
      "server's)");
}

TEST(rest_hostile, errors_of_strange_shapes_are_still_errors) {
  EXPECT_EQ(getting(raw_server("HTTP/1.1 404 -\r\nContent-Type: text/plain\r\n"
                               "Content-Length: 19\r\n\r\n404 page not found\n")),
            "get \"/x\": the API server answered 404: 404 page not found");
  const std::string status =
      R"({"kind":"Status","code":99999999999,"reason":7,"message":[],"details":{"retryAfterSeconds":-1}})";
  EXPECT_EQ(getting(raw_server("HTTP/1.1 500 -\r\nContent-Type: application/json\r\n"
                               "Content-Length: " +
                               std::to_string(status.size()) + "\r\n\r\n" + status)),
            "get \"/x\": the API server answered 500 (check the API server's log)");
}

TEST(rest_hostile, lists_that_are_none_or_never_end_are_refused) {
  const auto listing = [](const raw_server& server) {
    return failure_of([&] { (void)client({.url = server.url()}, quick()).list("/x"); });
  };
  EXPECT_EQ(listing(raw_server(whole("{\"items\":7,\"metadata\":{}}"))),
            "list \"/x\": the answer is no list (check that the path is a collection's)");
  EXPECT_EQ(listing(raw_server(whole(R"({"items":[],"metadata":{"continue":"more"}})"))),
            "list \"/x\": a page without items announces more items (check the API server's log)");
  EXPECT_EQ(listing(raw_server(whole("{\"items\":[{\"a\":\"" + std::string(900'000, 'a') +
                                     R"("}],"metadata":{"continue":"more"}})"))),
            "list \"/x\": the pages together exceed 8 MiB (request less at once)");
}

}  // namespace
}  // namespace gpushm_tests
