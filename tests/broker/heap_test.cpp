// SPDX-License-Identifier: Apache-2.0
// A broker whose thread runs out of memory, once at each allocation, and then serves all clients
// again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/files/sanitizers.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/served_broker.hpp"
#include "tests/core/counting_new.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;

/// A broker in a separate thread, the only one in which allocations fail.
class served {
 public:
  explicit served(const broker_options& options)
      : broker_(std::in_place, options, [] { gpushm_testing::fail_in_this_thread(true); }) {}
  served(const served&) = delete;
  served& operator=(const served&) = delete;
  ~served() {
    broker_.reset();
    gpushm_testing::fail_in_this_thread(false);
  }

 private:
  std::optional<broker_detail::testing_world::served_broker> broker_;
};

class broker_without_memory : public testing::Test {
 protected:
  void SetUp() override {
    if (gpushm::base::under_thread_sanitizer) {
      GTEST_SKIP() << "clang's ThreadSanitizer has an operator new that a program cannot replace";
    }
    options_.socket_path = folder_ / "socket";
    options_.limits.hello_timeout_ms = 100;
    options_.limits.send_timeout_ms = 200;
    options_.limits.fence_delay_ms = 10;
  }

  [[nodiscard]] client connect() const {
    return client::connect(
        {.socket_path = options_.socket_path, .timeout = 1s, .request_limit = 1s});
  }

  /// Typical requests of clients. Each may fail for lack of memory.
  void use() const {
    const auto tried = [](auto&& call) {
      try {
        call();
      } catch (const error& why) {
        EXPECT_FALSE(why.cause().empty());
      }
    };
    tried([&] {
      client producer = connect();
      client consumer = connect();
      subscription const news = consumer.subscribe("");
      tried([&] {
        segment created = producer.create("a", {.size_bytes = 4096, .device = "host"});
        created.publish();
        tried([&] { segment const opened = consumer.open("a", {.timeout = 300ms}); });
        tried([&] { static_cast<void>(consumer.open("b", {.timeout = 10ms})); });
        tried([&] { static_cast<void>(consumer.list("")); });
      });
    });
  }

  /// Typical requests, none of which may fail.
  void expect_service() const {
    client producer = connect();
    client consumer = connect();
    segment created = producer.create("good", {.size_bytes = 4096, .device = "host"});
    created.publish();
    segment const opened = consumer.open("good");
    EXPECT_EQ(opened.size_bytes(), 4096U);
    EXPECT_GE(consumer.list("").size(), 1U);
  }

  gpushm_testing::temp_dir folder_;
  broker_options options_;
};

TEST_F(broker_without_memory, serves_after_one_failed_allocation) {
  {
    const served broker(options_);  // for one-time allocations of the process
    expect_service();
  }
  const auto descriptors = gpushm_testing::count_descriptors(::getpid());
  std::size_t failures = 0;
  bool failed = true;
  for (std::size_t at = 1; failed; ++at) {
    SCOPED_TRACE("allocation " + std::to_string(at));
    served broker(options_);
    gpushm_testing::fail_allocation(at);
    use();
    failed = gpushm_testing::an_allocation_failed();
    gpushm_testing::fail_allocation(0);
    failures += failed ? 1 : 0;
    ASSERT_NO_THROW(expect_service());
  }
  EXPECT_GT(failures, 100U);
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] { return gpushm_testing::count_descriptors(::getpid()) == descriptors; }, 20s));
}

/// Its process may still write: its memory must not be freed, or given to another one.
TEST_F(broker_without_memory, keeps_leases_of_a_lost_session_until_its_fence) {
  options_.limits.fence_delay_ms = 3'600'000;
  options_.limits.hello_timeout_ms = 60'000;
  const auto connect_for = [&](std::chrono::milliseconds timeout) {
    return client::connect(
        {.socket_path = options_.socket_path, .timeout = timeout, .request_limit = timeout});
  };
  for (std::size_t at = 1; at <= 25; ++at) {
    SCOPED_TRACE("allocation " + std::to_string(at));
    served broker(options_);
    auto lost = gpushm_testing::raw_session::greeted(options_.socket_path);
    ASSERT_NE(publish_segment(lost, gpushm_testing::reserve_pages("w", 1)), 0U);
    gpushm_testing::fail_allocation(at);
    lost.hang_up();
    std::optional<std::uint32_t> ending;
    EXPECT_TRUE(gpushm_testing::eventually(
        [&] {
          try {
            ending = connect_for(300ms).stat("w").ending;
          } catch (
              const error& why) {  // perhaps there was no memory for this one, or for its reply
            return why.code() == errc::no_such_segment;
          }
          return *ending != 0;
        },
        60s));
    gpushm_testing::fail_allocation(0);
    EXPECT_EQ(ending.value_or(0), 1U) << "its leases have ended";
    ASSERT_EQ(connect_for(20s).list("").size(), 1U);
  }
}

TEST_F(broker_without_memory, serves_after_a_period_without_memory) {
  for (std::size_t at = 1; at < 400; at += 13) {
    SCOPED_TRACE("from allocation " + std::to_string(at));
    served broker(options_);
    gpushm_testing::fail_allocations_from(at);
    use();
    gpushm_testing::fail_allocation(0);
    ASSERT_NO_THROW(expect_service());
  }
}

}  // namespace
}  // namespace gpushm
