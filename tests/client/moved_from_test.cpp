// SPDX-License-Identifier: Apache-2.0
// A moved-from object is empty and reports the same error in every public class.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "gpushm/broker.hpp"
#include "gpushm/file_export.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;

template <typename Call>
void expect_empty(const std::string& type, const char* operation, Call&& call) {
  try {
    call();
    ADD_FAILURE() << type << "::" << operation << " throws nothing";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument) << type << "::" << operation;
    EXPECT_EQ(why.operation(), type) << operation;
    EXPECT_EQ(why.cause(), "this " + type + " object is empty") << operation;
    EXPECT_NE(why.next_step().find("; a moved-from object is empty"), std::string::npos)
        << operation;
  }
}

class moved_from : public ::testing::Test {
 protected:
  gpushm_testing::temp_dir directory_;
  broker broker_ = broker::start({.socket_path = directory_ / "socket"});
  client client_ = client::connect({.socket_path = directory_ / "socket"});
};

TEST_F(moved_from, client) {
  client moved = client::connect({.socket_path = directory_ / "socket"});
  const client taken = std::move(moved);
  std::array<std::byte, 8> bytes{};
  const std::array<std::string, 1> names{"a"};
  // NOLINTBEGIN(bugprone-use-after-move): under test
  expect_empty("client", "create", [&] { (void)moved.create("a", {.size_bytes = 1}); });
  expect_empty("client", "share", [&] { (void)moved.share("a", bytes.data(), bytes.size()); });
  expect_empty("client", "open", [&] { (void)moved.open("a"); });
  expect_empty("client", "try_open", [&] { (void)moved.try_open("a"); });
  expect_empty("client", "open_many", [&] { (void)moved.open_many(names); });
  expect_empty("client", "prefetch", [&] { (void)moved.prefetch(); });
  expect_empty("client", "list", [&] { (void)moved.list(); });
  expect_empty("client", "stat", [&] { (void)moved.stat("a"); });
  expect_empty("client", "remove", [&] { moved.remove("a"); });
  expect_empty("client", "subscribe", [&] { (void)moved.subscribe(); });
  expect_empty("client", "broker", [&] { (void)moved.broker(); });
  expect_empty("client", "cache_stats", [&] { (void)moved.cache_stats(); });
  expect_empty("client", "trim", [&] { moved.trim(); });
  moved = client::connect({.socket_path = directory_ / "socket"});
  EXPECT_TRUE(moved.list().empty()) << "usable after assignment";
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(moved_from, segment) {
  segment moved = client_.create("a", {.size_bytes = 8, .device = "host"});
  const segment taken = std::move(moved);
  std::array<std::byte, 8> bytes{};
  // NOLINTBEGIN(bugprone-use-after-move): under test
  EXPECT_FALSE(moved);
  EXPECT_EQ(moved.data(), nullptr);
  expect_empty("segment", "size_bytes", [&] { (void)moved.size_bytes(); });
  expect_empty("segment", "name", [&] { (void)moved.name(); });
  expect_empty("segment", "device", [&] { (void)moved.device(); });
  expect_empty("segment", "backend", [&] { (void)moved.backend(); });
  expect_empty("segment", "access", [&] { (void)moved.access(); });
  expect_empty("segment", "lifetime", [&] { (void)moved.lifetime(); });
  expect_empty("segment", "generation", [&] { (void)moved.generation(); });
  expect_empty("segment", "epoch", [&] { (void)moved.epoch(); });
  expect_empty("segment", "metadata", [&] { (void)moved.metadata(); });
  expect_empty("segment", "state", [&] { (void)moved.state(); });
  expect_empty("segment", "view", [&] { (void)moved.view(); });
  expect_empty("segment", "publish", [&] { moved.publish(); });
  expect_empty("segment", "read", [&] { moved.read(0, bytes); });
  expect_empty("segment", "write", [&] { moved.write(0, bytes); });
  expect_empty("segment", "fill", [&] { moved.fill(std::byte{0}); });
  expect_empty("segment", "export_segment", [&] { (void)export_segment(moved); });
  moved.reset();
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(moved_from, window) {
  const segment shown = client_.create("a", {.size_bytes = 8, .device = "host"});
  window moved(shown);
  const window taken = std::move(moved);
  // NOLINTBEGIN(bugprone-use-after-move): under test
  EXPECT_FALSE(moved);
  EXPECT_EQ(moved.data(), nullptr);
  EXPECT_EQ(moved.mutable_data(), nullptr);
  EXPECT_EQ(moved.size_bytes(), 0U);
  expect_empty("window", "show", [&] { moved.show(shown); });
  expect_empty("window", "segment", [&] { (void)moved.segment(); });
  expect_empty("window", "state", [&] { (void)moved.state(); });
  expect_empty("window", "ordinal", [&] { (void)moved.ordinal(); });
  expect_empty("window", "share", [&] { (void)moved.share(); });
  moved.reset();
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(moved_from, subscription) {
  subscription moved = client_.subscribe();
  const subscription taken = std::move(moved);
  // NOLINTNEXTLINE(bugprone-use-after-move): under test
  expect_empty("subscription", "next", [&] { (void)moved.next(0ms); });
}

TEST_F(moved_from, broker) {
  broker moved = broker::start({.socket_path = directory_ / "other"});
  std::optional<broker> taken(std::move(moved));
  // NOLINTBEGIN(bugprone-use-after-move): under test
  expect_empty("broker", "socket_path", [&] { (void)moved.socket_path(); });
  expect_empty("broker", "epoch", [&] { (void)moved.epoch(); });
  expect_empty("broker", "statistics", [&] { (void)moved.statistics(); });
  moved = std::move(*taken);
  EXPECT_EQ(moved.socket_path(), directory_ / "other");
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(moved_from, ticket_file) {
  const std::array<std::byte, 1> bytes{};
  ticket_file moved(directory_ / "file", bytes);
  const ticket_file taken = std::move(moved);
  // NOLINTNEXTLINE(bugprone-use-after-move): under test
  expect_empty("ticket_file", "path", [&] { (void)moved.path(); });
}

TEST_F(moved_from, file_export) {
  file_export moved = file_export::begin(directory_ / "export");
  const segment created = client_.create("a", {.size_bytes = 8, .device = "host"});
  const file_export taken = std::move(moved);
  // NOLINTBEGIN(bugprone-use-after-move): under test
  expect_empty("file_export", "client", [&] { (void)moved.client(); });
  expect_empty("file_export", "write", [&] { moved.write(created); });
  expect_empty("file_export", "path", [&] { (void)moved.path(); });
  // NOLINTEND(bugprone-use-after-move)
}

}  // namespace
}  // namespace gpushm
