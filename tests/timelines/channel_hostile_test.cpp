// SPDX-License-Identifier: Apache-2.0
// Channels whose producer stores anything in its page: what the tables do about it is in
// tests/channel.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "channel/layout.hpp"
#include "sync/timeline_page.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::channel_consumer;
using gpushm::channel_producer;
using gpushm::client;
using gpushm::errc;
using gpushm_tests::failure_of;
using gpushm_tests::timeline_world;
namespace channel = gpushm::channel;
namespace sync = gpushm::sync;

/// The page of the only producer of this process, as that one has it mapped.
sync::timeline_page& find_page() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("gpushm-signals") == std::string::npos ||
        line.find("rw-s") == std::string::npos) {
      continue;
    }
    const auto size =
        std::stoull(line.substr(line.find('-') + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
    auto* const first = reinterpret_cast<std::byte*>(std::stoull(line, nullptr, 16));
    if (size > sync::timeline_page_bytes &&
        reinterpret_cast<channel::table_head*>(first + sync::timeline_page_bytes)->magic ==
            channel::table_magic) {
      return *reinterpret_cast<sync::timeline_page*>(first);
    }
  }
  throw std::runtime_error("no page of a producer");
}

class hostile_producers : public testing::Test {
 protected:
  hostile_producers() {
    for (int i = 0; i != 4; ++i) {
      producer_.acquire(60s)->publish();
    }
  }
  [[nodiscard]] channel::table_head& head() const {
    return *reinterpret_cast<channel::table_head*>(reinterpret_cast<std::byte*>(&page_) +
                                                   sync::timeline_page_bytes);
  }
  /// No row has the item that it should have.
  void spoil_rows() const {
    auto* const rows = reinterpret_cast<channel::row*>(reinterpret_cast<std::byte*>(&head()) +
                                                       channel::rows_offset);
    for (std::uint32_t slot = 0; slot != 4; ++slot) {
      rows[slot].item.store(5);
    }
  }
  void end_at(std::uint32_t word, std::uint64_t last) const {
    page_.last[word].store(last);
    page_.words[word].store(sync::ended_word);
  }

  timeline_world world_{true};
  client client_ = world_.connect();
  client other_ = world_.connect();
  channel_producer producer_ =
      channel_producer::create(client_, "c", {.slot_bytes = 4'096, .slots = 4, .device = "host"});
  sync::timeline_page& page_ = find_page();
};

/// A step that is repeated until the end of its scope.
class repeated {
 public:
  explicit repeated(std::function<void(std::uint64_t)> step)
      : thread_([this, step = std::move(step)] {
          for (std::uint64_t i = 0; !is_over_.load(); ++i) {
            step(i);
          }
        }) {}
  ~repeated() {
    is_over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

TEST_F(hostile_producers, cannot_lead_consumers_out_of_the_segment) {
  auto& stride = reinterpret_cast<std::atomic<std::uint64_t>&>(head().slot_stride);
  const repeated toggling([&](std::uint64_t i) {
    stride.store((i / 2'000) % 2 == 0 ? 4'096 : std::uint64_t{1} << 42U);
  });
  for (int i = 0; i != 40; ++i) {
    const auto failure = failure_of([&] {
      auto consumer = channel_consumer::open(other_, "c");
      auto item = consumer.next(60s);
      ASSERT_TRUE(item);
      const auto* const bytes = static_cast<const volatile char*>(item->data());
      EXPECT_EQ(bytes[0] + bytes[item->bytes() - 1], 0);
    });
    EXPECT_EQ(failure.value_or(errc::protocol_error), errc::protocol_error);
  }
  stride.store(4'096);
}

TEST_F(hostile_producers, cannot_keep_consumers_that_share_work_in_a_loop) {
  auto consumer = channel_consumer::open(other_, "c", {.mode = gpushm::consumer_mode::share});
  spoil_rows();
  end_at(channel::published_timeline, 0);
  for (std::uint32_t entry = 0; entry != channel::max_consumers; ++entry) {
    end_at(channel::first_given_timeline + entry, std::uint64_t{1} << 61U);
  }
  EXPECT_EQ(failure_of([&] { static_cast<void>(consumer.next(60s)); }), errc::protocol_error);
}

TEST_F(hostile_producers, cannot_keep_consumers_of_the_newest_in_a_loop) {
  auto consumer = channel_consumer::open(other_, "c", {.mode = gpushm::consumer_mode::latest});
  spoil_rows();
  const repeated announcing(
      [&](std::uint64_t i) { page_.words[channel::announced_timeline].store(6 + i % 1'000); });
  for (int i = 0; i != 20; ++i) {
    const auto failure = failure_of([&] { EXPECT_FALSE(consumer.next(10ms)); });
    EXPECT_EQ(failure.value_or(errc::protocol_error), errc::protocol_error);
  }
}

}  // namespace
