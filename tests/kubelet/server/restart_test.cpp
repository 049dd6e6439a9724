// SPDX-License-Identifier: Apache-2.0
// Kubelets in separate processes: killed and restarted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/kubelet/server/server_test_support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::child;
using gpushm_testing::own_program;
using gpushm_testing::scaled_timeout;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::SizeIs;

class server_restart : public ::testing::Test, protected server_test_base {
 protected:
  [[nodiscard]] child start_kubelet() const {
    return child::start({.argv = {own_program("fake_kubelet"), directory()}});
  }
  static void wait_for_list(child& kubelet, std::size_t devices) {
    static_cast<void>(kubelet.wait_for_line(std::string("\"detail\":\"")
                                                .append(std::to_string(devices))
                                                .append("\".*\"event\":\"listed\""),
                                            scaled_timeout(seconds(20))));
  }
  static json send_command(child& kubelet, const std::string& command) {
    kubelet.write(command + "\n");
    return json::parse(kubelet.wait_for_line("\"answer\"", scaled_timeout(seconds(20))));
  }
};

TEST_F(server_restart, registers_after_a_kubelet_was_killed) {
  manager served(options());
  const auto resource = std::make_shared<test_resource>(gpu, 4);
  served.set_resources({resource});
  for (int time = 0; time < 3; ++time) {
    child kubelet = start_kubelet();
    wait_for_list(kubelet, 4);
    const json got = send_command(kubelet, "allocate pod nvidia.com/gpu 2");
    EXPECT_THAT(got["ids"], SizeIs(2)) << got;
    kubelet.kill(SIGKILL);
    ASSERT_EQ(kubelet.wait_exit(scaled_timeout(seconds(20))), gpushm_testing::killed_by(SIGKILL));
    // Its socket still exists without a listener.
    EXPECT_THAT(sockets(), Contains("kubelet.sock"));
    EXPECT_TRUE(eventually_status(served, gpu, [&](const auto& s) {
      return !s.registered &&
             s.last_error.starts_with("register \"nvidia.com/gpu\": the kubelet at " + directory() +
                                      " cannot be reached: ");
    }));
  }
}

TEST_F(server_restart, survives_kubelet_killed_at_any_moment) {
  manager served(options());
  served.set_resources({std::make_shared<test_resource>(gpu, 4)});
  for (int time = 0; time < 12; ++time) {
    child kubelet = start_kubelet();
    static_cast<void>(kubelet.wait_for_line("\"event\":\"started\"", scaled_timeout(seconds(20))));
    std::this_thread::sleep_for(milliseconds(time * 3));  // varies the moment of the kill
    kubelet.kill(SIGKILL);
    static_cast<void>(kubelet.wait_exit(scaled_timeout(seconds(20))));
  }
  child kubelet = start_kubelet();
  wait_for_list(kubelet, 4);
  EXPECT_EQ(send_command(kubelet, "devices nvidia.com/gpu")["healthy"], 4);
}

TEST_F(server_restart, program_reports_unknown_commands) {
  std::filesystem::create_directories(directory());
  child kubelet = start_kubelet();
  EXPECT_EQ(send_command(kubelet, "dance")["answer"], "unknown command");
  EXPECT_EQ(send_command(kubelet, "mode unknown")["answer"], "unknown command");
  const json refused = send_command(kubelet, "allocate pod nvidia.com/gpu 1");
  EXPECT_EQ(refused["answer"], "not admitted");
  EXPECT_EQ(refused["why"], "no device plugin is connected for nvidia.com/gpu");
  kubelet.write("quit\n");
  EXPECT_EQ(kubelet.wait_exit(scaled_timeout(seconds(20))), gpushm_testing::exited(0));
}

}  // namespace
}  // namespace gpushm_tests
