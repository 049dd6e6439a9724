// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/files/guarded_fd.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/forked_process.hpp"

namespace gpushm_tests {

/// gpushm-brokerd under gpushm-keeper, for members that are hostile to it.
class brokerd_with_hostile_member : public testing::Test {
 protected:
  explicit brokerd_with_hostile_member(const std::string& domains = "default,other",
                                       unsigned open_files = 0,
                                       const std::string& max_connections = "1000")
      : broker_(run_dir_, {"--domain", domains, "--max-connections", max_connections}, open_files) {
  }
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  [[nodiscard]] std::string log() { return broker_.keeper().output().all_output(); }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_;
};

/// With members of another uid.
class brokerd_with_foreign_member : public brokerd_with_hostile_member {
 protected:
  using brokerd_with_hostile_member::brokerd_with_hostile_member;
  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "needs root, to be a member of another uid";
    }
  }
  /// Calls `connect` with the domain's socket under the uid of hostile members.
  template <typename Connect>
  [[nodiscard]] auto as_hostile(Connect&& connect) const {
    // Members have only the domain's directory.
    std::filesystem::current_path(run_dir_ + "/d/default");
    EXPECT_EQ(::seteuid(gpushm_testing::hostile_uid), 0);
    auto result = connect("socket");
    EXPECT_EQ(::seteuid(0), 0);
    std::filesystem::current_path("/");
    return result;
  }
  [[nodiscard]] gpushm::base::guarded_fd connect_hostile() const {
    return as_hostile([](const std::string& socket) {
      return gpushm::transport::connect_packet_socket(socket, std::chrono::seconds(20));
    });
  }
  /// Until SIGCONT.
  void stop_broker() {
    const pid_t broker = broker_.pid();
    EXPECT_EQ(gpushm::base::signal_process(broker, SIGSTOP), 0);
    EXPECT_TRUE(
        gpushm_testing::eventually([&] { return is_stopped(broker); }, std::chrono::seconds(20)));
  }
  /// Waits until the broker has closed its end.
  static void expect_dropped(int socket) {
    EXPECT_TRUE(gpushm_testing::eventually(
        [&] {
          pollfd entry{socket, POLLIN | POLLRDHUP, 0};
          return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLRDHUP) != 0;
        },
        std::chrono::seconds(20)));
  }

 private:
  /// All its threads.
  static bool is_stopped(pid_t process) {
    const std::filesystem::directory_iterator threads("/proc/" + std::to_string(process) + "/task");
    return std::all_of(std::filesystem::begin(threads),
                       std::filesystem::end(threads),
                       [](const std::filesystem::directory_entry& each) {
                         std::ifstream file(each.path() / "stat");
                         std::string text;
                         std::getline(file, text);
                         return text.find(") T ") != std::string::npos;
                       });
  }
};

}  // namespace gpushm_tests
