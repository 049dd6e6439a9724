// SPDX-License-Identifier: Apache-2.0
// Waits of streams and hand-overs, in each order; what was seen ended stays so.
#include "client/timeline/place_follower.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "client/timeline/timeline_pages.hpp"
#include "sync/timeline_page_file.hpp"

namespace {

using gpushm::client_detail::mapped_page;
using gpushm::client_detail::mapped_place;
using gpushm::client_detail::place_follower;
using gpushm::client_detail::timeline_range;
using gpushm::sync::condition;
using gpushm::sync::wait_result;
using gpushm::sync::word_kind;
using std::chrono::milliseconds;

class place_followers : public testing::Test {
 protected:
  [[nodiscard]] static std::shared_ptr<mapped_page> new_page() {
    const gpushm::base::guarded_fd file(
        gpushm::sync::make_timeline_page(gpushm::sync::timeline_page_bytes));
    gpushm::sync::fill_timeline_page(file.get(), gpushm::sync::timeline_page_bytes);
    return std::make_shared<mapped_page>(file.get(), true, nullptr);
  }
  /// Another word of the page, with this value.
  [[nodiscard]] std::shared_ptr<const mapped_place> place(std::uint64_t value) {
    auto result =
        std::make_shared<const mapped_place>(nullptr, timeline_range{page_, next_timeline_++});
    result->writer().reset(value);
    return result;
  }

  std::shared_ptr<mapped_page> page_ = new_page();
  std::uint32_t next_timeline_ = 0;
};

TEST_F(place_followers, report_a_wait_that_a_hand_over_has_released) {
  for (const bool flags : {false, true}) {
    const condition wanted = flags ? condition::any_of(4) : condition(2);
    // The wait is noted before the hand-over, before it is followed, and after that.
    for (const int noted : {0, 1, 2}) {
      const auto first = place(1);
      place_follower follows(first);
      const auto at = follows.now();
      if (noted == 0) {
        follows.note(at, wanted);
      }
      first->writer().close(word_kind::moved);
      if (noted == 1) {
        follows.note(at, wanted);
      }
      follows.move(at, place(1));
      if (noted == 2) {
        follows.note(at, wanted);
      }
      EXPECT_TRUE(follows.look().was_released_too_soon) << flags << " " << noted;
      EXPECT_FALSE(follows.look().was_released_too_soon) << "reported once";
      EXPECT_EQ(follows.look().wanted, 0U);
    }
  }
}

TEST_F(place_followers, report_it_also_if_nobody_has_followed) {
  const auto first = place(1);
  place_follower follows(first);
  follows.note(first, 2);
  EXPECT_FALSE(follows.look().was_released_too_soon);
  first->writer().close(word_kind::moved);
  EXPECT_TRUE(follows.look().was_released_too_soon);
}

TEST_F(place_followers, report_no_wait_that_was_met_before) {
  for (const bool before : {true, false}) {
    const auto first = place(2);
    place_follower follows(first);
    if (before) {
      follows.note(first, 2);
    }
    first->writer().close(word_kind::moved);
    follows.move(first, place(2));
    if (!before) {
      follows.note(first, 2);
    }
    EXPECT_FALSE(follows.look().was_released_too_soon);
  }
}

TEST_F(place_followers, miss_no_hand_over_in_another_thread) {
  constexpr int rounds = 100;
  for (int i = 0; i != rounds; ++i) {
    const auto first = place(1);
    const auto second = place(1);
    place_follower follows(first);
    std::atomic<bool> started{false};
    std::jthread other([&] {
      started = true;
      first->writer().close(word_kind::moved);
      follows.move(first, second);
    });
    while (!started) {
      std::this_thread::yield();
    }
    // As a call that enqueues a wait: the place is read once, and used throughout.
    const auto at = follows.now();
    const bool was_released = at == first;
    follows.note(at, 2);
    other.join();
    EXPECT_EQ(follows.look().was_released_too_soon, was_released);
  }
}

TEST_F(place_followers, keep_a_terminal_word_that_was_seen) {
  const auto at = place(3);
  at->writer().close(word_kind::ended);
  EXPECT_EQ(at->wait(4, milliseconds(0)), wait_result::ended);
  at->writer().reset(9);  // as a store of a stream
  EXPECT_EQ(at->wait(4, milliseconds(0)), wait_result::ended);
  EXPECT_EQ(at->wait(4, milliseconds(20'000)), wait_result::ended) << "at once";
  EXPECT_EQ(at->wait(3, milliseconds(0)), wait_result::reached) << "before it ended";
  EXPECT_EQ(at->read().value(), 3U);
}

}  // namespace
