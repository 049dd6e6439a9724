// SPDX-License-Identifier: Apache-2.0
// Unit tests of the server's parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <stdexcept>

#include "kubernetes/device_plugin/server/grpc_status.hpp"
#include "kubernetes/device_plugin/server/kubelet_socket.hpp"
#include "kubernetes/device_plugin/server/messages.hpp"
#include "kubernetes/device_plugin/server/socket_name.hpp"
#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::device_plugin::unique_socket_name;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(server_socket_name, is_unique_and_contains_resource_and_pid) {
  std::set<std::string> names;
  for (int time = 0; time < 100; ++time) {
    names.insert(unique_socket_name("/d", "gpushm", "nvidia.com/gpu"));
  }
  EXPECT_THAT(names, SizeIs(100));
  EXPECT_THAT(*names.begin(),
              AllOf(StartsWith("gpushm-nvidia.com_gpu-" + std::to_string(::getpid()) + "-"),
                    EndsWith(".sock"),
                    Not(HasSubstr("/"))));
}

TEST(server_socket_name, fits_into_a_socket_address) {
  const std::string directory = "/var/lib/kubelet/device-plugins";
  const std::string name = unique_socket_name(directory, "gpushm", std::string(300, 'r'));
  EXPECT_EQ(directory.size() + 1 + name.size(), 107U);
  EXPECT_THAT(name, AllOf(StartsWith("gpushm-rrrr"), EndsWith(".sock")));
  try {
    static_cast<void>(unique_socket_name("/" + std::string(90, 'd'), "gpushm", "nvidia.com/gpu"));
    FAIL() << "accepted";
  } catch (const error& rejection) {
    EXPECT_EQ(
        std::string(rejection.what()),
        "serve \"nvidia.com/gpu\": a socket in /" + std::string(90, 'd') +
            " would have a path of more than 107 bytes (use a directory with a shorter path)");
  }
}

TEST(server_status, code_shows_whether_to_retry) {
  const auto code = [](errc failure) {
    return gpushm::device_plugin::failed_call_of(
               std::make_exception_ptr(error(failure, "do", "it", "cannot", "")))
        .status.error_code();
  };
  EXPECT_EQ(code(errc::invalid_argument), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(errc::device_not_found), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(errc::permission_denied), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(code(errc::timed_out), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(code(errc::out_of_memory), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code(errc::driver_unavailable), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(code(errc::gone_or_replaced), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(code(errc::system_error), grpc::StatusCode::INTERNAL);
  const auto failed = gpushm::device_plugin::failed_call_of(
      std::make_exception_ptr(error(errc::quota_exceeded, "do", "it", "cannot", "stop")));
  EXPECT_EQ(failed.outcome, "quota_exceeded");
  EXPECT_EQ(failed.status.error_message(), "do \"it\": cannot (stop)");
}

TEST(server_status, long_texts_are_cut_at_character_boundaries) {
  std::string cause;
  for (int time = 0; time < 2'000; ++time) {
    cause.append("é");
  }
  const std::string text = gpushm::device_plugin::failed_call_of(
                               std::make_exception_ptr(error(
                                   errc::system_error, {}, {}, std::string("x").append(cause))))
                               .status.error_message();
  EXPECT_EQ(text.size(), 1'999U + std::string("…").size());
  EXPECT_THAT(text, EndsWith("éé…"));
}

TEST(server_messages, devices_have_a_topology_only_if_known) {
  v1beta1::ListAndWatchResponse list;
  gpushm::device_plugin::write_devices({{"a", true, {}}, {"b", false, 0}}, list);
  ASSERT_EQ(list.devices_size(), 2);
  EXPECT_EQ(list.devices(0).id(), "a");
  EXPECT_EQ(list.devices(0).health(), "Healthy");
  EXPECT_FALSE(list.devices(0).has_topology());
  EXPECT_EQ(list.devices(1).health(), "Unhealthy");
  ASSERT_EQ(list.devices(1).topology().nodes_size(), 1);
  EXPECT_EQ(list.devices(1).topology().nodes(0).id(), 0);
}

TEST(server_messages, size_of_a_list_is_estimated_from_above) {
  // The largest number of replicas of one GPU that a configuration may have.
  std::vector<gpushm::device_plugin::device> devices;
  for (int replica = 0; replica < 50'000; ++replica) {
    devices.push_back({"GPU-12345678-1111-4222-8333-444455556666::" + std::to_string(replica),
                       replica % 2 == 0,
                       replica % 8});
  }
  v1beta1::ListAndWatchResponse list;
  gpushm::device_plugin::write_devices(devices, list);
  EXPECT_LE(list.ByteSizeLong(), gpushm::device_plugin::list_bytes(devices));
  EXPECT_LE(gpushm::device_plugin::list_bytes(devices), gpushm::device_plugin::max_list_bytes);
  devices = {{std::string(63, 'x'), false, -1}};
  gpushm::device_plugin::write_devices(devices, list);
  EXPECT_LE(list.ByteSizeLong(), gpushm::device_plugin::list_bytes(devices));
}

TEST(server_kubelet_socket, identity_changes_when_recreated) {
  const gpushm_testing::temp_dir scratch;
  EXPECT_FALSE(gpushm::device_plugin::socket_at(scratch / "kubelet.sock"));
  EXPECT_FALSE(gpushm::device_plugin::socket_at(scratch.path()));
  EXPECT_TRUE(gpushm::device_plugin::is_directory(scratch.path()));
  gpushm_testing::fake_kubelet kubelet({.directory = scratch.path()});
  kubelet.start();
  const auto first = gpushm::device_plugin::socket_at(scratch / "kubelet.sock");
  ASSERT_TRUE(first);
  EXPECT_EQ(gpushm::device_plugin::socket_at(scratch / "kubelet.sock"), first);
  kubelet.stop();
  kubelet.start();
  EXPECT_NE(gpushm::device_plugin::socket_at(scratch / "kubelet.sock"), first);
}

}  // namespace
}  // namespace gpushm_tests
