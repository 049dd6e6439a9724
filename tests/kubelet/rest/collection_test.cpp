// SPDX-License-Identifier: Apache-2.0
// Following a collection through all kinds of server behaviour: no event is lost or repeated.

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/logged.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::client;
using gpushm::api_client::collection_watch;
using gpushm::api_client::watch_event;
using gpushm::testing::fake_kube_api;
using gpushm_testing::eventually;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr seconds timeout{20};

/// A copy of a collection, built from lists and events; fails the test for inconsistent events.
class mirror {
 public:
  [[nodiscard]] collection_watch::handler handler() {
    return {[this](const std::vector<json>& items) { listed(items); },
            [this](const watch_event& event) { handle_event(event); }};
  }
  [[nodiscard]] bool wait_for(const std::vector<std::string>& names) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return names_now() == names; });
  }
  [[nodiscard]] std::size_t lists() const {
    const std::lock_guard lock(mutex_);
    return lists_;
  }
  [[nodiscard]] std::size_t events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    return names_now();
  }

 private:
  [[nodiscard]] std::vector<std::string> names_now() const {
    std::vector<std::string> names;
    for (const auto& each : objects_) {
      names.push_back(each.first);
    }
    return names;
  }
  void listed(const std::vector<json>& items) {
    const std::lock_guard lock(mutex_);
    objects_.clear();
    for (const json& each : items) {
      objects_[name_of(each)] = each;
    }
    ++lists_;
    changed_.notify_all();
  }
  void handle_event(const watch_event& event) {
    const std::lock_guard lock(mutex_);
    const std::string name = name_of(event.object);
    ++events_;
    EXPECT_EQ(objects_.contains(name), event.type != "ADDED") << event.type << " " << name;
    if (event.type == "DELETED") {
      objects_.erase(name);
    } else {
      objects_[name] = event.object;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, json> objects_;
  std::size_t lists_ = 0;
  std::size_t events_ = 0;
};

class rest_collection : public ::testing::Test {
 protected:
  void put(const std::string& name) { server_.put(std::string(slices) + "/" + name, slice(name)); }
  [[nodiscard]] std::size_t count_requests(const std::string& part) const {
    std::size_t count = 0;
    for (const auto& each : server_.requests()) {
      count += each.query.find(part) != std::string::npos ? 1U : 0U;
    }
    return count;
  }
  [[nodiscard]] bool becomes_current(const collection_watch& watch) const {
    return eventually([&] { return watch.is_current(); }, timeout);
  }

  fake_kube_api server_;
  client client_{{.url = server_.url()}};
  mirror seen_;
};

TEST_F(rest_collection, lists_then_follows) {
  put("a");
  const collection_watch watch(client_, slices, "spec.driver=gpushm.dev", seen_.handler());
  ASSERT_TRUE(seen_.wait_for({"a"}));
  put("b");
  server_.put(std::string(slices) + "/other", slice("other", "n1", "gpu.nvidia.com"));
  put("c");
  server_.erase(std::string(slices) + "/a");
  EXPECT_TRUE(seen_.wait_for({"b", "c"}));
  EXPECT_TRUE(becomes_current(watch));
  EXPECT_EQ(watch.last_failure(), "");
  EXPECT_EQ(seen_.lists(), 1U);
  EXPECT_EQ(seen_.events(), 3U);
}

TEST_F(rest_collection, interrupted_streams_lose_and_repeat_no_event) {
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(becomes_current(watch));
  std::vector<std::string> expected;
  for (int i = 100; i < 160; ++i) {
    expected.push_back("s" + std::to_string(i));
    put(expected.back());
    if (i % 10 == 3) {
      server_.end_watches();
    } else if (i % 10 == 7) {
      server_.cut_watches();
    }
  }
  EXPECT_TRUE(seen_.wait_for(expected));
  EXPECT_EQ(seen_.lists(), 1U);
  EXPECT_EQ(seen_.events(), expected.size());
  EXPECT_TRUE(becomes_current(watch));
}

TEST_F(rest_collection, resumes_where_a_bookmark_left_it) {
  const collection_watch watch(client_, slices, "spec.driver=gpushm.dev", seen_.handler());
  ASSERT_TRUE(server_.wait_for_watches(1, timeout));
  server_.put(std::string(nodes) + "/n1");
  server_.send_bookmarks();
  ASSERT_TRUE(eventually(
      [&] {
        server_.end_watches();
        return count_requests("resourceVersion=101") > 0;
      },
      timeout));
  EXPECT_EQ(seen_.lists(), 1U);
}

TEST_F(rest_collection, expired_version_is_listed_again) {
  put("a");
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(server_.wait_for_watches(1, timeout));
  server_.expire_history();
  server_.erase(std::string(slices) + "/a");
  put("b");
  EXPECT_TRUE(seen_.wait_for({"b"}));
  EXPECT_TRUE(eventually([&] { return seen_.lists() == 2; }, timeout));
  EXPECT_TRUE(becomes_current(watch));
  // Also with 410 as the status of the reply.
  server_.fail({.query_part = "watch=1", .status = 410, .reason = "Gone"});
  EXPECT_TRUE(eventually(
      [&] {
        server_.end_watches();  // repeated: the second watch may just be starting
        return seen_.lists() == 3;
      },
      timeout));
}

TEST_F(rest_collection, gone_after_outage_lists_again_immediately) {
  put("a");
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(server_.wait_for_watches(1, timeout));
  // The pause grows to 3.2 s.
  server_.fail({.query_part = "watch=1", .times = 5, .status = 503});
  server_.end_watches();
  ASSERT_TRUE(eventually([&] { return count_requests("watch=1") >= 6; }, timeout));
  server_.expire_history();
  server_.erase(std::string(slices) + "/a");
  put("b");
  ASSERT_TRUE(seen_.wait_for({"b"}));
  const auto requests = server_.requests();
  const auto again = std::find_if(requests.rbegin(), requests.rend(), [](const auto& each) {
    return each.query.find("limit=") != std::string::npos;
  });
  ASSERT_NE(again, requests.rend());
  const auto before = std::next(again);
  ASSERT_NE(before, requests.rend());
  EXPECT_NE(before->query.find("watch=1"), std::string::npos);
  EXPECT_LT(again->at - before->at, gpushm_testing::wait_limit(milliseconds(2'000)));
}

TEST_F(rest_collection, repeated_gone_responses_back_off) {
  server_.fail({.query_part = "watch=1", .times = 1'000, .status = 410, .reason = "Expired"});
  const collection_watch watch(client_, slices, {}, seen_.handler());
  std::this_thread::sleep_for(milliseconds(1'500));
  EXPECT_GE(count_requests("limit="), 3U);
  EXPECT_LE(count_requests("limit="), 8U);
}

TEST_F(rest_collection, failed_handler_is_called_again) {
  std::atomic<int> failing{1};
  auto handler = seen_.handler();
  const auto handle_event = handler.event;
  handler.event = [&](const watch_event& event) {
    if (failing-- > 0) {
      throw std::bad_alloc();
    }
    handle_event(event);
  };
  const collection_watch watch(client_, slices, {}, handler);
  ASSERT_TRUE(becomes_current(watch));
  put("a");
  EXPECT_TRUE(seen_.wait_for({"a"}));
  put("b");
  EXPECT_TRUE(seen_.wait_for({"a", "b"}));
  // The same for a list.
  failing = 1;
  const auto listed = handler.listed;
  handler.listed = [&](const std::vector<json>& items) {
    if (failing-- > 0) {
      throw std::bad_alloc();
    }
    listed(items);
  };
  const collection_watch second(client_, slices, {}, handler);
  EXPECT_TRUE(eventually([&] { return seen_.lists() >= 3; }, timeout));
}

TEST_F(rest_collection, outage_and_recovery_are_logged_once) {
  const gpushm_testing::logged lines;
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(server_.wait_for_watches(1, timeout));  // it is current before its first watch
  server_.cut_watches();  // a failure that the next try resolves is not an outage
  ASSERT_TRUE(eventually([&] { return count_requests("watch=1") >= 2; }, timeout));
  ASSERT_TRUE(becomes_current(watch));
  server_.fail(
      {.query_part = "watch=1", .times = 4, .status = 503, .reason = "ServiceUnavailable"});
  ASSERT_TRUE(eventually(
      [&] {
        if (count_requests("watch=1") < 3) {
          server_.end_watches();  // repeated: the second watch may just be starting
        }
        return count_requests("watch=1") >= 7;
      },
      timeout));
  ASSERT_TRUE(becomes_current(watch));
  EXPECT_THAT(lines.with("watch"),
              ElementsAre("watch \"/apis/resource.k8s.io/v1/resourceslices\": the API server "
                          "replied with 503 ServiceUnavailable (try again later); retrying",
                          ::testing::MatchesRegex("watch \"/apis/resource.k8s.io/v1/resourceslices"
                                                  "\": recovered after 4 failures in [0-9]+ s")));
}

TEST_F(rest_collection, failures_are_reported_with_growing_back_off) {
  server_.fail({.times = 1'000, .status = 503, .reason = "ServiceUnavailable"});
  const auto start = std::chrono::steady_clock::now();
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(eventually([&] { return server_.requests().size() >= 5; }, timeout));
  // 100, 200, 400 and 800 ms, each up to a quarter shorter.
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(1'125));
  EXPECT_FALSE(watch.is_current());
  EXPECT_EQ(watch.last_failure(),
            "list \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 503 "
            "ServiceUnavailable (try again later)");
  server_.clear_failures();
  put("a");
  EXPECT_TRUE(seen_.wait_for({"a"}));
  EXPECT_TRUE(becomes_current(watch));
  EXPECT_EQ(watch.last_failure(), "");
}

TEST_F(rest_collection, retry_after_is_respected) {
  server_.fail({.status = 429, .reason = "TooManyRequests", .retry_after_seconds = 1});
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(server_.wait_for_watches(1, timeout));
  const auto requests = server_.requests();
  ASSERT_GE(requests.size(), 2U);
  EXPECT_GE(requests[1].at - requests[0].at, seconds(1));
}

TEST_F(rest_collection, streams_that_end_immediately_back_off) {
  const collection_watch watch(client_, slices, {}, seen_.handler());
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(1'500);
  while (std::chrono::steady_clock::now() < deadline) {
    ASSERT_TRUE(server_.wait_for_watches(1, timeout));
    server_.end_watches();
    ASSERT_TRUE(eventually([&] { return server_.watches() == 0; }, timeout));
  }
  EXPECT_LE(count_requests("watch=1"), 7U);
}

TEST_F(rest_collection, server_restart_is_followed) {
  put("a");
  const collection_watch watch(client_, slices, {}, seen_.handler());
  ASSERT_TRUE(seen_.wait_for({"a"}));
  ASSERT_TRUE(becomes_current(watch));
  server_.stop();
  EXPECT_TRUE(eventually([&] { return !watch.is_current(); }, timeout));
  put("b");
  server_.start();
  EXPECT_TRUE(seen_.wait_for({"a", "b"}));
  EXPECT_EQ(seen_.lists(), 1U);
}

TEST_F(rest_collection, stops_immediately_despite_slow_server) {
  const auto threads = gpushm_testing::count_threads(::getpid());
  const auto descriptors = gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  for (const bool slow : {false, true}) {
    if (slow) {
      server_.fail({.delay = seconds(60)});
    }
    server_.clear_requests();
    auto requester =
        std::make_unique<client>(gpushm::api_client::server_access{.url = server_.url()});
    auto watch = std::make_unique<collection_watch>(*requester, slices, "", seen_.handler());
    ASSERT_TRUE(server_.wait_for_request([](const auto&) { return true; }, timeout));
    const auto start = std::chrono::steady_clock::now();
    watch.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              gpushm_testing::scaled_timeout(seconds(10)));
  }
  server_.stop();
  EXPECT_TRUE(eventually(
      [&] {
        return gpushm_testing::count_threads(::getpid()) <= threads &&
               gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())) <= descriptors;
      },
      timeout))
      << gpushm_testing::to_text(gpushm_testing::count_descriptors(::getpid()));
}

}  // namespace
}  // namespace gpushm_tests
