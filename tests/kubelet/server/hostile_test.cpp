// SPDX-License-Identifier: Apache-2.0
// Kubelets that do not respond, reject, close connections, do not request the devices, or send
// oversized requests: the server keeps running, reports the problem, and registers as soon as
// possible.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <thread>

#include "base/files/unique_fd.hpp"
#include "kubernetes/kubelet_api/deviceplugin_v1beta1.grpc.pb.h"
#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::eventually;
using gpushm_testing::kubelet_mode;
using gpushm_testing::resource_view;
using ::testing::StartsWith;

class server_hostile : public ::testing::Test, protected server_test_base {
 protected:
  std::shared_ptr<test_resource> gpus_ = std::make_shared<test_resource>(gpu, 4);
};

TEST_F(server_hostile, silent_kubelet_is_retried) {
  kubelet_.start();
  kubelet_.set_mode(kubelet_mode::silent);
  auto settings = options();
  settings.register_timeout = milliseconds(300);
  manager served(settings);
  served.set_resources({gpus_});
  const std::string expected =
      "register \"nvidia.com/gpu\": the kubelet at " + directory() +
      " did not reply in time (the agent retries; check the kubelet's log)";
  EXPECT_TRUE(
      eventually_status(served, gpu, [&](const auto& s) { return s.last_error == expected; }));
  ASSERT_TRUE(kubelet_.wait_for(
      gpu, [](const resource_view& view) { return view.registrations >= 3; }, seconds(20)));
  kubelet_.set_mode(kubelet_mode::normal);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_hostile, silent_kubelet_does_not_delay_stop) {
  kubelet_.start();
  kubelet_.set_mode(kubelet_mode::silent);
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for(
      gpu, [](const resource_view& view) { return view.registrations >= 1; }, seconds(20)));
  const auto started = std::chrono::steady_clock::now();
  served.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - started, gpushm_testing::scaled_timeout(seconds(5)));
}

TEST_F(server_hostile, rejecting_kubelet_is_retried) {
  kubelet_.start();
  kubelet_.set_mode(kubelet_mode::refusing);
  manager served(options());
  served.set_resources({gpus_, std::make_shared<test_resource>("no-domain", 1)});
  const auto expected = [&](const std::string& name, const std::string& text) {
    return "register \"" + name + "\": the kubelet at " + directory() + " refused: " + text +
           " (the agent retries; check the kubelet's log)";
  };
  const std::string everything = expected(gpu, "the fake kubelet refuses everything");
  EXPECT_TRUE(
      eventually_status(served, gpu, [&](const auto& s) { return s.last_error == everything; }));
  EXPECT_TRUE(status_of(served, gpu).serving);
  kubelet_.set_mode(kubelet_mode::normal);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const std::string invalid = expected("no-domain", "the ResourceName \"no-domain\" is invalid");
  EXPECT_TRUE(eventually_status(
      served, "no-domain", [&](const auto& s) { return s.last_error == invalid; }));
}

TEST_F(server_hostile, registers_again_if_kubelet_requests_no_devices) {
  kubelet_.start();
  kubelet_.set_mode(kubelet_mode::not_listing);
  auto settings = options();
  settings.list_timeout = milliseconds(200);
  manager served(settings);
  served.set_resources({gpus_});
  const std::string expected =
      "register \"nvidia.com/gpu\": the kubelet accepted the registration but did not request the "
      "devices within "
      "200 ms (the agent registers again; check the kubelet's log)";
  EXPECT_TRUE(
      eventually_status(served, gpu, [&](const auto& s) { return s.last_error == expected; }));
  kubelet_.set_mode(kubelet_mode::normal);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_hostile, kubelet_closing_connections_is_retried) {
  std::filesystem::create_directories(directory());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory() + "/kubelet.sock";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::copy(path.begin(), path.end(), std::begin(address.sun_path));
  gpushm::base::unique_fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how socket addresses are passed
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  std::atomic<int> closed{0};
  std::thread closing([&] {
    for (;;) {
      const int taken = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (taken < 0) {
        return;
      }
      ::close(taken);
      ++closed;
    }
  });
  manager served(options());
  served.set_resources({gpus_});
  EXPECT_TRUE(eventually([&] { return closed >= 3; }, seconds(20)));
  EXPECT_TRUE(eventually_status(served, gpu, [&](const auto& s) {
    return s.last_error.starts_with("register \"nvidia.com/gpu\": the kubelet at " + directory() +
                                    " cannot be reached: ");
  }));
  ::shutdown(listener.get(), SHUT_RDWR);
  closing.join();
  listener.reset();
  // A real kubelet recreates the socket.
  kubelet_.start();
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
}

TEST_F(server_hostile, oversized_request_is_rejected) {
  kubelet_.start();
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const auto stub = v1beta1::DevicePlugin::NewStub(
      grpc::CreateChannel("unix:" + directory() + "/" + kubelet_.resource(gpu).endpoint,
                          grpc::InsecureChannelCredentials()));
  const auto request_devices = [&](int ids) {
    v1beta1::AllocateRequest request;
    auto& container = *request.add_container_requests();
    for (int number = 0; number < ids; ++number) {
      container.add_devices_ids("GPU-00000000-0000-0000-0000-000000000000::1");
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         gpushm_testing::scaled_timeout(seconds(20)));
    v1beta1::AllocateResponse response;
    return stub->Allocate(&context, request, &response);
  };
  EXPECT_EQ(request_devices(200'000).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);  // above 4 MiB
  const auto unknown = request_devices(50'000);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.error_message(),
              StartsWith("allocate \"nvidia.com/gpu\": there is no device GPU-00000000"));
  // The kubelet's stream is not affected.
  EXPECT_EQ(kubelet_.allocate("pod", gpu, 4).ids.size(), 4U);
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 1U);
}

}  // namespace
}  // namespace gpushm_tests
