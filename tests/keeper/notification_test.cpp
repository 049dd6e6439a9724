// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/notification.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "base/files/syscall.hpp"
#include "succession/descriptor_store/notification_socket.hpp"

namespace {

using gpushm::keeper::is_valid_name;
using gpushm::keeper::notification;
using gpushm::keeper::parse_notification;

/// Whether a packet can be sent to the socket at this path.
bool send_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const gpushm::base::unique_fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return ::sendto(socket.get(),
                  "READY=1",
                  7,
                  0,
                  reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) == 7;
}

TEST(notification, has_the_assignments_about_descriptors) {
  const notification stored = parse_notification("FDSTORE=1\nFDPOLL=0\nFDNAME=chunk.7\n");
  EXPECT_TRUE(stored.store);
  EXPECT_FALSE(stored.remove || stored.barrier || stored.ready);
  EXPECT_EQ(stored.name, "chunk.7");

  const notification removed = parse_notification("FDNAME=x\nFDSTOREREMOVE=1");
  EXPECT_TRUE(removed.remove);
  EXPECT_FALSE(removed.store || removed.barrier || removed.ready);
  EXPECT_EQ(removed.name, "x");

  EXPECT_TRUE(parse_notification("BARRIER=1").barrier);
  EXPECT_FALSE(parse_notification("BARRIER=1").has_name);
  EXPECT_FALSE(parse_notification("BARRIER=1\nFDNAME=a:b").has_name);
  EXPECT_TRUE(parse_notification("BARRIER=1\nFDNAME=journal").has_name);
  EXPECT_TRUE(parse_notification("STATUS=1\nWATCHDOG=1").alive);
  EXPECT_FALSE(parse_notification("WATCHDOG=trigger\nWATCHDOG_USEC=1").alive);
  EXPECT_TRUE(parse_notification("STATUS=FDSTORE=1\nREADY=1").ready);
  EXPECT_FALSE(parse_notification("STATUS=FDSTORE=1\nREADY=1").store);
}

TEST(notification, ignores_other_lines_and_values) {
  for (const char* text :
       {"", "\n\n", "FDSTORE", "FDSTORE=0", "FDSTORE=11", "fdstore=1", "FDSTORE=1 ", "BARRIER=2"}) {
    const notification parsed = parse_notification(text);
    EXPECT_FALSE(parsed.store || parsed.remove || parsed.barrier || parsed.ready) << text;
    EXPECT_EQ(parsed.name, "stored");
  }
}

TEST(notification, replaces_an_invalid_name) {
  EXPECT_EQ(parse_notification("FDSTORE=1").name, "stored");
  for (const std::string& name : {std::string(),
                                  std::string("a:b"),
                                  std::string("a\tb"),
                                  std::string("\xc3\xa9"),
                                  std::string(256, 'x')}) {
    EXPECT_FALSE(is_valid_name(name));
    EXPECT_EQ(parse_notification("FDSTORE=1\nFDNAME=" + name).name, "stored");
  }
  EXPECT_EQ(parse_notification("FDNAME=" + std::string(255, 'x')).name, std::string(255, 'x'));
}

TEST(notification, any_bytes_are_parsed) {
  std::mt19937 random(3);
  using namespace std::string_literals;
  const std::string alphabet = "FDSTOREREMOVE=1\nNAMEBARPOLL0:\0\xff"s;
  for (int i = 0; i < 100'000; ++i) {
    std::string text(random() % 60, '\0');
    for (char& each : text) {
      each = alphabet[random() % alphabet.size()];
    }
    EXPECT_TRUE(is_valid_name(parse_notification(text).name));
  }
}

/// A node's keeper that is killed and started again at once.
TEST(notification_socket, waits_for_the_end_of_a_keeper_that_dies) {
  std::string folder = "/tmp/gpushm-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/notify";
  auto old = gpushm::keeper::bind_notification_socket(path);
  const pid_t dying = ::fork();
  if (dying == 0) {
    gpushm::base::pause_before_retry(std::chrono::milliseconds(100));
    ::_exit(0);
  }
  old.reset();
  const auto next = gpushm::keeper::bind_notification_socket(path);
  // It receives from any process.
  EXPECT_TRUE(send_to(path));
  int status = 0;
  EXPECT_EQ(::waitpid(dying, &status, 0), dying);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(gpushm::keeper::peek_notification(next.get()).any);
  std::filesystem::remove_all(folder);
}

}  // namespace
