// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/timeline_poller.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "tests/support/process/deadline.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using keys = std::vector<std::uint64_t>;

class timeline_pollers : public testing::Test {
 protected:
  [[nodiscard]] sync::timeline_writer writer(std::uint32_t index) { return {*page_, index}; }
  void watch(std::uint64_t key, std::uint32_t index, std::uint64_t value) {
    poller_.watch(key, {{*page_, index}, value, page_}, {});
  }
  /// What is due at the next return.
  [[nodiscard]] keys wait(std::chrono::milliseconds longest = 60s) {
    std::array<std::uint64_t, 256> due{};
    const auto count = poller_.wait(due, steady_clock::now() + longest);
    return {due.begin(), due.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  std::shared_ptr<sync::timeline_page> page_ = std::make_shared<sync::timeline_page>();
  timeline_poller poller_;
};

TEST_F(timeline_pollers, report_each_watch_once) {
  writer(0).signal(3);
  watch(2, 0, 3);
  watch(1, 0, 1);
  watch(3, 0, 4);
  EXPECT_EQ(wait(), (keys{1, 2})) << "in the order of their keys";
  EXPECT_EQ(wait(0s), keys());
  writer(0).close(sync::word_kind::ended);
  EXPECT_EQ(wait(), keys{3}) << "a word that has ended";
  watch(4, 1, 1);
  watch(4, 2, 1);
  writer(1).signal(1);
  EXPECT_EQ(wait(0s), keys()) << "the second watch has replaced the first one";
  poller_.remove(4);
  writer(2).signal(1);
  EXPECT_EQ(wait(0s), keys());
}

TEST_F(timeline_pollers, sleep_until_one_of_many_words_is_signaled) {
  // More than a thread can sleep on; several watches of one word.
  constexpr std::uint32_t words = 200;
  for (std::uint32_t i = 0; i != words; ++i) {
    watch(i, i, 1);
    watch(i + words, i, 1);
  }
  for (const std::uint32_t i : {0U, 100U, words - 1}) {
    std::jthread signaler([&] { writer(i).signal(1); });
    keys seen;
    while (seen.size() < 2) {
      const keys more = wait();
      seen.insert(seen.end(), more.begin(), more.end());
    }
    std::sort(seen.begin(), seen.end());  // the signal may come within a look
    EXPECT_EQ(seen, (keys{i, i + words}));
  }
}

TEST_F(timeline_pollers, read_words_again_that_streams_signal) {
  writer(0).use_streams();
  watch(1, 0, 1);
  // As a stream does: it wakes nobody.
  std::jthread stream([&] { page_->words[0].store(1); });
  EXPECT_EQ(wait(), keys{1});
}

TEST_F(timeline_pollers, end_watches_by_a_stop_and_by_a_time) {
  std::stop_source stop;
  poller_.watch(1, {{*page_, 0}, 1, page_}, stop.get_token());
  std::jthread other([&] { stop.request_stop(); });
  EXPECT_EQ(wait(), keys{1});
  poller_.watch(2, {{*page_, 0}, 1, page_}, stop.get_token());
  EXPECT_EQ(wait(), keys{2}) << "requested before";
  poller_.watch(3, {{*page_, 0}, 1, page_, steady_clock::now() + 1ms}, {});
  EXPECT_EQ(wait(), keys{3});
}

TEST_F(timeline_pollers, are_woken) {
  poller_.wake();
  EXPECT_EQ(wait(), keys());
  std::jthread other([&] { poller_.wake(); });
  EXPECT_EQ(wait(), keys());
}

TEST_F(timeline_pollers, keep_a_page_as_long_as_its_watch) {
  const std::weak_ptr<sync::timeline_page> kept = page_;
  watch(1, 0, 1);
  watch(2, 0, 0);
  page_.reset();
  EXPECT_FALSE(kept.expired());
  EXPECT_EQ(wait(), keys{2});
  EXPECT_FALSE(kept.expired());
  poller_.remove(1);
  EXPECT_TRUE(kept.expired());
}

/// Watches come and go while the thread sleeps on their words.
TEST_F(timeline_pollers, lose_no_signal_while_others_are_removed) {
  constexpr std::uint64_t rounds = 500;
  std::atomic<std::uint64_t> seen{0};
  std::jthread waiter([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const std::uint64_t key : wait()) {
        seen = key;
      }
    }
  });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    watch(i, 0, i);
    watch(rounds + i, 1, sync::max_value);
    writer(0).signal(i);
    poller_.remove(rounds + i);
    ASSERT_TRUE(gpushm_testing::eventually([&] { return seen == i; }, 60s)) << i;
  }
  waiter.request_stop();
  poller_.wake();
}

}  // namespace
}  // namespace gpushm::client_detail
