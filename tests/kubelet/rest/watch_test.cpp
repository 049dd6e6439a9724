// SPDX-License-Identifier: Apache-2.0
// One watch: its events, how it ends, and how fast it stops.

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::api_error;
using gpushm::api_client::client;
using gpushm::api_client::client_options;
using gpushm::api_client::watch_event;
using gpushm::testing::fake_kube_api;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr seconds timeout{20};

/// A watch on a separate thread.
class watching {
 public:
  watching(const client& through, std::string from)
      : thread_([this, &through, from = std::move(from)](const std::stop_token& stop) {
          std::string failure = failure_of([&] {
            through.watch(
                slices, from, {}, [this](const watch_event& event) { take(event); }, stop);
          });
          const std::lock_guard lock(mutex_);
          ended_ = std::move(failure);
          changed_.notify_all();
        }) {}

  [[nodiscard]] bool wait_events(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return events_.size() >= count; });
  }
  /// The error with which it ended; "" if it has not ended.
  [[nodiscard]] std::string wait_end() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return ended_.has_value(); });
    return ended_.value_or("");
  }
  [[nodiscard]] std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  void stop() { thread_.request_stop(); }

 private:
  void take(const watch_event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event.type == "BOOKMARK"
                          ? "BOOKMARK " +
                                event.object.at("metadata").at("resourceVersion").get<std::string>()
                          : event.type + " " + name_of(event.object));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::optional<std::string> ended_;
  std::jthread thread_;
};

class rest_watch : public ::testing::Test {
 protected:
  [[nodiscard]] std::string version() const {
    return client_.list(slices).at("metadata").at("resourceVersion");
  }
  void put(const std::string& name, const std::string& node = "n1") {
    server_.put(std::string(slices) + "/" + name, slice(name, node));
  }
  void open(std::size_t count = 1) { ASSERT_TRUE(server_.wait_for_watches(count, timeout)); }

  fake_kube_api server_;
  client client_{{.url = server_.url()}};
};

TEST_F(rest_watch, events_arrive_in_order) {
  put("old");
  watching watch(client_, version());
  open();
  put("a");
  put("a", "n2");
  put("b");
  server_.erase(std::string(slices) + "/a");
  server_.send_bookmarks();
  ASSERT_TRUE(watch.wait_events(5));
  EXPECT_THAT(watch.events(),
              ElementsAre("ADDED a", "MODIFIED a", "ADDED b", "DELETED a", "BOOKMARK 105"));
}

TEST_F(rest_watch, requests_bookmarks_and_a_timeout) {
  watching watch(client_, "100");
  open();
  const auto query = server_.requests().back().query;
  EXPECT_EQ(query, "watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=100");
}

TEST_F(rest_watch, earlier_events_are_delivered) {
  const std::string from = version();
  put("a");
  put("b");
  watching watch(client_, from);
  ASSERT_TRUE(watch.wait_events(2));
  EXPECT_THAT(watch.events(), ElementsAre("ADDED a", "ADDED b"));
}

TEST_F(rest_watch, returns_when_server_ends_and_keeps_connection) {
  watching watch(client_, "100");
  open();
  server_.end_watches();
  EXPECT_EQ(watch.wait_end(), "no error");
  (void)client_.list(slices);
  EXPECT_EQ(server_.connections(), 1U);
}

TEST_F(rest_watch, cut_connection_is_reported) {
  watching watch(client_, "100");
  open();
  server_.cut_watches();
  EXPECT_EQ(
      watch.wait_end(),
      "watch \"/apis/resource.k8s.io/v1/resourceslices\": the connection to " + server_.url() +
          " was lost before the response was complete (try again; check the API server's log)");
}

TEST_F(rest_watch, expired_version_is_gone) {
  put("a");
  server_.expire_history();
  try {
    client_.watch(slices, "100", {}, [](const watch_event&) {}, {});
    FAIL() << "watched";
  } catch (const api_error& failure) {
    EXPECT_TRUE(failure.gone());
    EXPECT_EQ(failure.reason(), "Expired");
    EXPECT_STREQ(
        failure.what(),
        "watch \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 410 "
        "Expired: too old resource version: 100 (102) (list again)");
  }
}

TEST_F(rest_watch, idle_watch_stops_promptly) {
  watching watch(client_, "100");
  open();
  const auto start = std::chrono::steady_clock::now();
  watch.stop();
  EXPECT_EQ(watch.wait_end(), "no error");
  EXPECT_LT(std::chrono::steady_clock::now() - start, gpushm_testing::scaled_timeout(seconds(5)));
}

TEST_F(rest_watch, stops_during_slow_start) {
  server_.fail({.delay = seconds(60)});
  watching watch(client_, "100");
  ASSERT_TRUE(server_.wait_for_request([](const auto&) { return true; }, timeout));
  watch.stop();
  EXPECT_EQ(watch.wait_end(), "no error");
}

TEST_F(rest_watch, silent_stream_times_out) {
  client_options options;
  options.watch_silence = milliseconds(300);
  const client impatient({.url = server_.url()}, options);
  EXPECT_EQ(failure_of([&] { impatient.watch(slices, "100", {}, [](const watch_event&) {}, {}); }),
            "watch \"/apis/resource.k8s.io/v1/resourceslices\": no data on the stream for 0.3 "
            "s (check whether the API server is overloaded)");
}

TEST_F(rest_watch, bookmarks_keep_stream_alive) {
  fake_kube_api with_bookmarks({.bookmark_interval = milliseconds(50)});
  client_options options;
  options.watch_silence = gpushm_testing::scaled_timeout(milliseconds(2'000));
  options.watch_time = seconds(4);
  const client patient({.url = with_bookmarks.url()}, options);
  std::size_t bookmarks = 0;
  EXPECT_EQ(failure_of([&] {
              patient.watch(slices,
                            "100",
                            {},
                            [&bookmarks](const watch_event& event) {
                              bookmarks += event.type == "BOOKMARK" ? 1U : 0U;
                            },
                            {});
            }),
            "no error");
  EXPECT_GT(bookmarks, 5U);
}

TEST_F(rest_watch, handler_exception_is_propagated) {
  put("a");
  EXPECT_THROW(client_.watch(
                   slices, "0", {}, [](const watch_event&) { throw std::logic_error("mine"); }, {}),
               std::logic_error);
  EXPECT_EQ(failure_of([&] { (void)client_.list(slices); }), "no error");
}

}  // namespace
}  // namespace gpushm_tests
