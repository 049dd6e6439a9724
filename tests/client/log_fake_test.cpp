// SPDX-License-Identifier: Apache-2.0
// The log sink is the user's code: the library must call it without holding its locks. Runs with a
// fake GPU on which the second chunk of an import cannot be mapped, and the first one not be
// unmapped.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

constexpr std::uint64_t chunk = 2U << 20U;

/// Opens "made", which is expected to fail; returns false if it does not.
bool fails_to_open(client& consumer) {
  try {
    static_cast<void>(consumer.open("made"));
  } catch (const error& why) {
    return why.code() == errc::driver_error;
  }
  return false;
}

struct participants {
  client connect() const { return client::connect({.socket_path = directory / "socket"}); }

  gpushm_testing::temp_dir directory;
  gpushm::broker broker =
      broker::start({.socket_path = directory / "socket", .accept_fake_chunks = true});
  client producer = connect();
  segment created =
      producer.create("made", {.size_bytes = 2 * chunk, .device = "0", .chunk_bytes = chunk});
  client consumer = connect();
};

class log_sink : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("GPUSHM_FAKE_FAIL") == nullptr) {  // NOLINT(concurrency-mt-unsafe): one thread
      GTEST_SKIP() << "run it under run-with-fake-gpus, with GPUSHM_FAKE_FAIL (CTest does)";
    }
    ::alarm(60);  // instead of a deadlock
    all_.emplace();
    all_->created.publish();
  }
  void TearDown() override {
    set_log_sink({});
    ::alarm(0);
  }

  std::optional<participants> all_;
};

TEST_F(log_sink, may_call_the_logging_client) {
  std::vector<std::string> lines;
  set_log_sink([&](log_level, std::string_view text) {
    lines.emplace_back(text);
    if (lines.size() > 1) {
      return;
    }
    EXPECT_EQ(all_->consumer.stat("made").size_bytes, 2 * chunk);
    EXPECT_EQ(all_->consumer.list().size(), 1U);
    segment opened =
        all_->consumer.open("made");  // needs the lock under which the first open failed
    EXPECT_EQ(opened.size_bytes(), 2 * chunk);
    opened.reset();
    all_->consumer.trim();
  });
  EXPECT_TRUE(fails_to_open(all_->consumer));
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front().find("cuMemUnmap: "), 0U) << lines.front();
}

// Python's sink needs a lock that other threads hold during calls.
TEST_F(log_sink, may_wait_for_a_lock_held_during_calls) {
  std::mutex of_the_program;
  std::unique_lock held(of_the_program);
  std::promise<void> called;
  set_log_sink([&, first = std::make_shared<std::once_flag>()](log_level, std::string_view) {
    std::call_once(*first, [&] { called.set_value(); });
    const std::lock_guard lock(of_the_program);
  });
  std::thread other([&] { EXPECT_TRUE(fails_to_open(all_->consumer)); });
  called.get_future().wait();
  EXPECT_EQ(all_->consumer.open("made").size_bytes(), 2 * chunk);
  held.unlock();
  other.join();
}

}  // namespace
}  // namespace gpushm
