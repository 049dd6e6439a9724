// SPDX-License-Identifier: Apache-2.0
// Versions and aliases as programs see them: a broker and its clients in one process, on host
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using gpushm_tests::scripted_broker;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t page = 4096;

class versions : public testing::Test {
 protected:
  versions() {
    options_.socket_path = directory_ / "socket";
    broker_.emplace(broker::start(options_));
    trainer_.emplace(connect());
    reader_.emplace(connect());
  }
  [[nodiscard]] client connect() const {
    return client::connect({.socket_path = options_.socket_path});
  }
  /// A part, or another segment of a version, that has its own number as first value.
  void make(std::uint64_t number, const std::string& part = "") {
    const std::string name = "w/x@" + std::to_string(number) + (part.empty() ? "" : "/" + part);
    segment made = trainer_->create(
        name, {.size_bytes = page, .device = "host", .lifetime = lifetime::persistent});
    std::memcpy(made.mutable_data(), &number, sizeof number);
    made.publish();
  }
  std::uint64_t publish(const std::vector<std::string>& parts = {}, std::uint32_t keep = 1) {
    const std::uint64_t number =
        create_version(*trainer_, "w/x", {.parts = parts, .keep_versions = keep});
    if (parts.empty()) {
      make(number);
    }
    for (const std::string& each : parts) {
      make(number, each);
    }
    return number;
  }
  static std::uint64_t value_of(const segment& segment) {
    std::uint64_t value = 0;
    std::memcpy(&value, segment.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> result;
    for (const version_info& each : list_versions(*reader_, "w/x")) {
      result.push_back(each.number);
    }
    return result;
  }
  template <typename Call>
  static error failure_of(Call&& call) {
    try {
      call();
    } catch (const error& why) {
      return why;
    }
    ADD_FAILURE() << "no error";
    return {errc::system_error, {}, {}, {}, {}};
  }

  gpushm_testing::temp_dir directory_;
  broker_options options_;
  std::optional<broker> broker_;
  std::optional<client> trainer_;
  std::optional<client> reader_;
};

TEST_F(versions, are_opened_by_number_and_alias) {
  EXPECT_EQ(publish(), 1U);
  EXPECT_EQ(value_of(reader_->open("w/x@latest")), 1U);
  EXPECT_EQ(reader_->open("w/x@latest").name(), "w/x@1");
  EXPECT_EQ(publish(), 2U);
  EXPECT_EQ(value_of(reader_->open("w/x@latest")), 2U);
  EXPECT_EQ(value_of(reader_->open("w/x@1")), 1U);
  EXPECT_EQ(resolve_version(*reader_, "w/x"), 2U);
  EXPECT_EQ(resolve_version(*reader_, "w/x@1"), 1U);
  const error refused = failure_of([&] { static_cast<void>(reader_->open("w/x")); });
  EXPECT_EQ(refused.code(), errc::no_such_segment);
  EXPECT_THAT(refused.what(), HasSubstr("w/x@latest"));
}

TEST_F(versions, under_an_alias_are_hits_until_it_moves) {
  publish();
  static_cast<void>(reader_->open("w/x@latest"));
  const auto before = reader_->cache_stats();
  EXPECT_EQ(value_of(reader_->open("w/x@latest")), 1U);
  EXPECT_EQ(reader_->cache_stats().hits, before.hits + 1) << "without the broker";
  publish();
  EXPECT_EQ(value_of(reader_->open("w/x@latest")), 2U) << "one reply later, the alias has moved";
  withdraw_version(*trainer_, "w/x", 2);
  EXPECT_EQ(value_of(reader_->open("w/x@latest")), 1U) << "back, under another word";
}

TEST_F(versions, that_an_alias_has_left_are_dropped_while_unused) {
  publish({}, 0);
  static_cast<void>(reader_->open("w/x@latest"));
  static_cast<void>(reader_->open("w/x@1"));  // kept under both names
  publish({}, 0);
  EXPECT_TRUE(
      eventually([&] { return numbers() == std::vector<std::uint64_t>{2}; }, scaled_timeout(20s)))
      << "nobody uses it";
  EXPECT_EQ(failure_of([&] { static_cast<void>(reader_->open("w/x@1")); }).code(),
            errc::no_such_segment);
}

TEST_F(versions, in_use_stay_as_they_are) {
  publish({}, 0);
  const segment held = reader_->open("w/x@latest");
  publish({}, 0);
  publish({}, 0);
  EXPECT_TRUE(eventually(
      [&] {
        return numbers() == std::vector<std::uint64_t>{3, 1};
      },
      scaled_timeout(20s)));
  EXPECT_EQ(value_of(held), 1U);
  EXPECT_EQ(held.state(), segment_state::live);
}

TEST_F(versions, of_several_parts_are_opened_as_one) {
  std::atomic<bool> is_done{false};
  publish({"r0", "r1", "r2"});
  std::thread publisher([&] {
    auto other = connect();
    for (int i = 0; i != 100; ++i) {
      publish({"r0", "r1", "r2"});
      // Processes drop what they have cached of old versions a moment later.
      EXPECT_TRUE(
          eventually([&] { return list_versions(other, "w/x").size() < 16; }, scaled_timeout(20s)));
    }
    is_done = true;
  });
  const std::vector<std::string> names{
      "w/x@latest/r2", "w/x@latest/r0", "w/x@latest/r1", "w/x@latest/none"};
  std::size_t updates = 0;
  std::uint64_t last = 0;
  while (!is_done) {
    auto opened = reader_->open_many(names);
    ASSERT_EQ(opened.size(), names.size());
    const std::uint64_t number = value_of(opened[0].value());
    EXPECT_EQ(value_of(opened[1].value()), number);
    EXPECT_EQ(value_of(opened[2].value()), number);
    EXPECT_FALSE(opened[3]);
    EXPECT_GE(number, last);
    updates += number != last ? 1 : 0;
    last = number;
  }
  publisher.join();
  EXPECT_GT(updates, 0U);
}

TEST_F(versions, that_are_not_complete_are_not_seen) {
  const std::uint64_t number = create_version(*trainer_, "w/x", {.parts = {"r0", "r1"}});
  make(number, "r0");
  EXPECT_EQ(failure_of([&] { static_cast<void>(reader_->open("w/x@latest/r0")); }).code(),
            errc::no_such_segment);
  std::thread waits([&] {
    auto other = connect();
    EXPECT_EQ(value_of(other.open("w/x@latest/r0", {.timeout = scaled_timeout(20s)})), number);
  });
  make(number, "r1");
  waits.join();
  // The trainer ends before the next one is complete.
  const std::uint64_t next = create_version(*trainer_, "w/x", {.parts = {"r0", "r1"}});
  make(next, "r0");
  trainer_.reset();
  EXPECT_TRUE(eventually([&] { return numbers() == std::vector<std::uint64_t>{number}; },
                         scaled_timeout(20s)));
  EXPECT_EQ(value_of(reader_->open("w/x@latest/r0")), number) << "the old one serves";
}

TEST_F(versions, report_moves_to_subscribers) {
  publish();
  auto events = reader_->subscribe("w/x@");
  publish();
  std::vector<std::string> moved;
  while (const auto event = events.next(moved.empty() ? scaled_timeout(20s) : 0ms)) {
    if (event->kind == event_kind::alias_moved) {
      moved.push_back(event->name);
    }
  }
  EXPECT_THAT(moved, ElementsAre("w/x@latest"));
}

TEST_F(versions, have_aliases_of_their_own) {
  publish();
  publish();
  move_alias(*trainer_, "w/x", "prod", 1);
  EXPECT_EQ(value_of(reader_->open("w/x@prod")), 1U);
  const auto list = list_versions(*reader_, "w/x");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].aliases, "latest");
  EXPECT_EQ(list[1].aliases, "prod");
  EXPECT_EQ(list[1].bytes, page);
  EXPECT_EQ(list[1].state, version_state::published);
  move_alias(*trainer_, "w/x", "prod", 2);
  EXPECT_EQ(value_of(reader_->open("w/x@prod")), 2U);
  remove_alias(*trainer_, "w/x", "prod");
  EXPECT_EQ(failure_of([&] { static_cast<void>(reader_->open("w/x@prod")); }).code(),
            errc::no_such_segment);
  EXPECT_EQ(failure_of([&] { move_alias(*trainer_, "w/x", "latest", 1); }).code(),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { move_alias(*trainer_, "w/x", "Prod", 1); }).code(),
            errc::invalid_argument);
}

TEST_F(versions, are_refused_with_wrong_arguments) {
  EXPECT_EQ(failure_of([&] { create_version(*trainer_, "w/x@1"); }).code(), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] {
              create_version(*trainer_, "w/x", {.parts = {"a", "a"}});
            }).code(),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { create_version(*trainer_, "w/x", {.parts = {"a@b"}}); }).code(),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { static_cast<void>(trainer_->open("w/x@Latest")); }).code(),
            errc::invalid_argument);
  EXPECT_EQ(
      failure_of([&] {
        static_cast<void>(trainer_->create("w/x@latest", {.size_bytes = page, .device = "host"}));
      }).code(),
      errc::invalid_argument);
  EXPECT_EQ(failure_of([&] {
              create_version(*trainer_, "w/x", {.parts = std::vector<std::string>(1'025, "p")});
            }).code(),
            errc::invalid_argument);
  publish();
  EXPECT_EQ(failure_of([&] { create_version(*trainer_, "w/x", {.number = 1}); }).code(),
            errc::invalid_argument);
  EXPECT_EQ(create_version(*trainer_, "w/x", {.number = 7}), 7U);
  EXPECT_EQ(failure_of([&] { static_cast<void>(resolve_version(*reader_, "w/x@7")); }).code(),
            errc::no_such_segment)
      << "it is not published";
  EXPECT_TRUE(list_versions(*reader_, "w/none").empty());
}

/// Its broker is older: such names would be refused there as invalid.
TEST(versions_of_an_older_broker, are_refused_by_the_client) {
  const scripted_broker old([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back({{asked.id, wire::done{}}});
    return replies;
  });
  client user = client::connect({.socket_path = old.socket_path()});
  try {
    static_cast<void>(user.open("w/x@latest"));
    ADD_FAILURE() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::unsupported_version);
  }
  try {
    create_version(user, "w/x");
    ADD_FAILURE() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::unsupported_version);
    EXPECT_EQ(why.object(), "w/x");
  }
}

}  // namespace
}  // namespace gpushm
