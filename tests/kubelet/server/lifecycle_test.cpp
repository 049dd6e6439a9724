// SPDX-License-Identifier: Apache-2.0
// A resource is registered, and registered again after every event by which a kubelet loses it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <fstream>

#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::device_plugin::manager;
using gpushm::device_plugin::resource_status;
using gpushm_testing::eventually;
using gpushm_testing::kubelet_mode;
using gpushm_testing::resource_view;
using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class server_lifecycle : public ::testing::Test, protected server_test_base {
 protected:
  std::shared_ptr<test_resource> gpus_ = std::make_shared<test_resource>(gpu, 4);
};

TEST_F(server_lifecycle, registers_with_running_kubelet) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  ASSERT_TRUE(eventually_status(served, gpu, [](const auto& s) { return s.registered; }));
  const resource_status now = status_of(served, gpu);
  EXPECT_EQ(now.devices, 4U);
  EXPECT_EQ(now.healthy, 4U);
  EXPECT_TRUE(now.serving);
  EXPECT_EQ(now.last_error, "");
  EXPECT_EQ(now.times_registered, 1U);
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 1U);
  EXPECT_THAT(kubelet_.resource(gpu).endpoint, StartsWith("gpushm-nvidia.com_gpu-"));
}

TEST_F(server_lifecycle, serves_before_kubelet_exists_and_reports_it) {
  fs::create_directories(directory());
  manager served(options());
  served.set_resources({gpus_});
  const std::string expected =
      "register \"nvidia.com/gpu\": there is no " + directory() +
      "/kubelet.sock (the resource is registered as soon as a kubelet creates it)";
  EXPECT_TRUE(
      eventually_status(served, gpu, [&](const auto& s) { return s.last_error == expected; }));
  EXPECT_TRUE(status_of(served, gpu).serving);
  EXPECT_FALSE(status_of(served, gpu).registered);
  EXPECT_THAT(sockets(), ElementsAre(StartsWith("gpushm-nvidia.com_gpu-")));
  kubelet_.start();
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_lifecycle, waits_for_directory_and_its_parents) {
  manager served([&] {
    auto settings = options();
    settings.directory = scratch_ / "not/yet/there";
    return settings;
  }());
  served.set_resources({gpus_});
  const std::string expected = "serve \"nvidia.com/gpu\": there is no directory " +
                               (scratch_ / "not/yet/there") +
                               " (the resource is served as soon as a kubelet creates it)";
  EXPECT_TRUE(
      eventually_status(served, gpu, [&](const auto& s) { return s.last_error == expected; }));
  EXPECT_FALSE(status_of(served, gpu).serving);
  gpushm_testing::fake_kubelet late({.directory = scratch_ / "not/yet/there"});
  late.start();
  EXPECT_TRUE(late.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_lifecycle, registers_again_after_kubelet_restart) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const std::string before = kubelet_.resource(gpu).endpoint;
  for (std::uint64_t time = 1; time <= 3; ++time) {
    ASSERT_TRUE(eventually_status(served, gpu, [&](const auto& s) {
      return s.times_registered == time;
    })) << status_of(served, gpu).times_registered;
    kubelet_.stop();
    const auto started = steady_clock::now();
    kubelet_.start();
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    RecordProperty("milliseconds_" + std::to_string(time),
                   std::to_string((steady_clock::now() - started) / milliseconds(1)));
  }
  // The kubelet had deleted the socket.
  EXPECT_NE(kubelet_.resource(gpu).endpoint, before);
  EXPECT_TRUE(eventually_status(served, gpu, [](const auto& s) { return s.times_registered == 4; }))
      << status_of(served, gpu).times_registered;
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 4U);
}

TEST_F(server_lifecycle, registers_again_after_kubelet_outage) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  kubelet_.stop();
  ASSERT_TRUE(eventually_status(served, gpu, [](const auto& s) { return !s.registered; }));
  // A device becomes unhealthy meanwhile: the kubelet receives the current list.
  gpus_->set_health("device-1", false);
  EXPECT_TRUE(eventually_status(served, gpu, [](const auto& s) { return s.healthy == 3; }));
  kubelet_.start();
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 3, seconds(20)));
}

TEST_F(server_lifecycle, recreates_a_removed_socket) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const std::string before = kubelet_.resource(gpu).endpoint;
  fs::remove(directory() + "/" + before);
  EXPECT_TRUE(kubelet_.wait_for(
      gpu,
      [&](const resource_view& view) {
        return view.connected && view.healthy() == 4 && view.endpoint != before;
      },
      seconds(20)));
}

TEST_F(server_lifecycle, follows_replaced_directory) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  fs::rename(directory(), scratch_ / "aside");
  ASSERT_TRUE(eventually_status(served, gpu, [](const auto& s) { return !s.serving; }));
  gpushm_testing::fake_kubelet other({.directory = directory()});
  other.start();
  EXPECT_TRUE(other.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_lifecycle, registers_again_when_kubelet_ends_the_list) {
  kubelet_.start();
  kubelet_.set_mode(kubelet_mode::disconnecting);
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for(
      gpu, [](const resource_view& view) { return view.registrations >= 3; }, seconds(20)));
  const auto noticed = status_of(served, gpu);
  kubelet_.set_mode(kubelet_mode::normal);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  // The registration persists.
  EXPECT_TRUE(eventually_status(served, gpu, [](const auto& s) { return s.registered; }));
  EXPECT_EQ(status_of(served, gpu).last_error, "");
  EXPECT_GE(noticed.times_registered, 1U);
}

TEST_F(server_lifecycle, sends_only_changes) {
  kubelet_.start();
  manager served(options());
  gpus_->set_numa_node("device-2", 1);
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).devices, gpus_->devices());
  gpus_->set_health("device-0", false);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 3, seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).devices, gpus_->devices());
  gpus_->set_health("device-0", true);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 1U);
}

TEST_F(server_lifecycle, resource_without_devices_is_registered) {
  kubelet_.start();
  manager served(options());
  served.set_resources({std::make_shared<test_resource>(gpu, 0)});
  EXPECT_TRUE(kubelet_.wait_for(
      gpu,
      [](const resource_view& view) { return view.connected && view.lists == 1; },
      seconds(20)));
  EXPECT_THAT(kubelet_.resource(gpu).devices, IsEmpty());
}

TEST_F(server_lifecycle, stop_removes_sockets_and_keeps_devices_unhealthy) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  served.stop();
  EXPECT_THAT(sockets(), ElementsAre("kubelet.sock"));
  EXPECT_FALSE(gpus_->has_listener());
  EXPECT_THAT(served.status(), IsEmpty());
  EXPECT_TRUE(kubelet_.wait_for(
      gpu, [](const resource_view& view) { return !view.connected; }, seconds(20)));
  // The devices are kept: the next instance makes them healthy again.
  EXPECT_THAT(kubelet_.resource(gpu).devices, SizeIs(4));
  served.set_resources({gpus_});
  served.stop();
}

TEST_F(server_lifecycle, observer_receives_calls_and_outcomes) {
  class recorder : public gpushm::base::operation_observer {
   public:
    void finished(std::string_view service,
                  std::string_view operation,
                  std::string_view outcome,
                  std::chrono::nanoseconds took) noexcept override {
      const std::lock_guard lock(mutex_);
      seen_.push_back(
          std::string(service).append(" ").append(operation).append(" ").append(outcome));
      negative_ = negative_ || took.count() < 0;
    }
    [[nodiscard]] std::size_t count(const std::string& event) const {
      const std::lock_guard lock(mutex_);
      return static_cast<std::size_t>(std::count(seen_.begin(), seen_.end(), event));
    }
    [[nodiscard]] bool any_negative() const {
      const std::lock_guard lock(mutex_);
      return negative_;
    }

   private:
    mutable std::mutex mutex_;
    std::vector<std::string> seen_;
    bool negative_ = false;
  };
  recorder observed;
  kubelet_.start();
  auto settings = options();
  settings.observer = &observed;
  {
    manager served(settings);
    served.set_resources({gpus_});
    ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
    static_cast<void>(kubelet_.allocate("pod", gpu, 2));
    ASSERT_TRUE(
        eventually([&] { return observed.count("device_plugin Register ok") == 1; }, seconds(20)));
  }
  // Called once by the manager before registration, and once by the kubelet.
  EXPECT_EQ(observed.count("device_plugin GetDevicePluginOptions ok"), 2U);
  EXPECT_EQ(observed.count("device_plugin Allocate ok"), 1U);
  EXPECT_EQ(observed.count("device_plugin ListAndWatch ok"), 1U);
  EXPECT_FALSE(observed.any_negative());
}

/// A socket without a listener.
void leave_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::copy(path.begin(), path.end(), std::begin(address.sun_path));
  const int socket_fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(socket_fd, 0);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how socket addresses are passed
  EXPECT_EQ(::bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(socket_fd);
}

TEST_F(server_lifecycle, removes_only_stale_sockets) {
  fs::create_directories(directory());
  leave_socket(directory() + "/gpushm-nvidia.com_gpu-1-deadbeef0.sock");
  leave_socket(directory() + "/other-plugin.sock");
  std::ofstream(directory() + "/gpushm-notes.sock") << "a file";
  manager served(options());
  manager other(options());
  served.set_resources({gpus_});
  other.set_resources({std::make_shared<test_resource>("gpushm.dev/share", 1)});
  EXPECT_TRUE(eventually(
      [&] { return !fs::exists(directory() + "/gpushm-nvidia.com_gpu-1-deadbeef0.sock"); },
      seconds(20)));
  EXPECT_THAT(sockets(),
              ElementsAre(StartsWith("gpushm-gpushm.dev_share-"),
                          "gpushm-notes.sock",
                          StartsWith("gpushm-nvidia.com_gpu-"),
                          "other-plugin.sock"));
}

}  // namespace
}  // namespace gpushm_tests
