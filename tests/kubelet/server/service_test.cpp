// SPDX-License-Identifier: Apache-2.0
// The service's exact responses, over its socket and without a kubelet.
#include "kubernetes/device_plugin/server/service.hpp"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <stdexcept>

#include "kubernetes/kubelet_api/unix_server.hpp"
#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::ending;
using gpushm::device_plugin::service;
using gpushm::kubelet::unix_server;
using gpushm_testing::eventually;
using std::chrono::seconds;
using ::testing::ElementsAre;

/// Fails in every way.
class failing_resource final : public gpushm::device_plugin::resource {
 public:
  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<gpushm::device_plugin::device> devices() const override {
    throw gpushm::error(
        gpushm::errc::driver_unavailable, "list", "GPUs", "NVML is not available", "");
  }
  [[nodiscard]] std::vector<gpushm::device_plugin::allocation> allocate(
      std::span<const std::vector<std::string>> containers) const override {
    if (containers.empty()) {
      throw std::runtime_error("something else");
    }
    if (containers.size() == 2) {
      throw gpushm::error(
          gpushm::errc::quota_exceeded, "allocate", name_, std::string(9'000, 'x'), "");
    }
    throw gpushm::error(gpushm::errc::invalid_argument,
                        "allocate",
                        name_,
                        "device \"é\" is requested twice",
                        "request it once");
  }
  [[nodiscard]] std::vector<std::string> prefer(std::span<const std::string> /*available*/,
                                                std::span<const std::string> /*must_include*/,
                                                std::size_t /*count*/) const override {
    return {};
  }
  [[nodiscard]] bool has_preferences() const noexcept override { return true; }
  void on_change(std::function<void()> /*changed*/) override {}

 private:
  std::string name_ = "nvidia.com/gpu";
};

class server_service : public ::testing::Test {
 protected:
  void serve(std::shared_ptr<const gpushm::device_plugin::resource> resource) {
    service_ = std::make_unique<service>(std::move(resource), nullptr, [this] { ++ended_; });
    server_ = std::make_unique<unix_server>(scratch_ / "plugin.sock",
                                            std::vector<grpc::Service*>{service_.get()});
    stub_ = v1beta1::DevicePlugin::NewStub(grpc::CreateChannel("unix:" + (scratch_ / "plugin.sock"),
                                                               grpc::InsecureChannelCredentials()));
  }
  static void set_deadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() +
                         gpushm_testing::scaled_timeout(seconds(20)));
  }
  grpc::Status allocate(const std::vector<std::vector<std::string>>& containers,
                        v1beta1::AllocateResponse& response) {
    grpc::ClientContext context;
    set_deadline(context);
    v1beta1::AllocateRequest request;
    for (const auto& ids : containers) {
      auto& one = *request.add_container_requests();
      for (const auto& id : ids) {
        one.add_devices_ids(id);
      }
    }
    return stub_->Allocate(&context, request, &response);
  }

  gpushm_testing::temp_dir scratch_;
  std::atomic<int> ended_{0};
  std::unique_ptr<service> service_;
  std::unique_ptr<unix_server> server_;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub_;
};

TEST_F(server_service, options_report_preferences_and_no_pre_start) {
  for (const bool has : {true, false}) {
    serve(std::make_shared<test_resource>(gpu, 1, has));
    grpc::ClientContext context;
    set_deadline(context);
    v1beta1::DevicePluginOptions options;
    ASSERT_TRUE(stub_->GetDevicePluginOptions(&context, {}, &options).ok());
    EXPECT_EQ(options.get_preferred_allocation_available(), has);
    EXPECT_FALSE(options.pre_start_required());
    grpc::ClientContext another;
    set_deadline(another);
    v1beta1::PreStartContainerResponse nothing;
    EXPECT_TRUE(stub_->PreStartContainer(&another, {}, &nothing).ok());
    server_.reset();
  }
}

TEST_F(server_service, allocates_for_each_container_in_order) {
  serve(std::make_shared<test_resource>(gpu, 3));
  v1beta1::AllocateResponse response;
  ASSERT_TRUE(allocate({{"device-2"}, {"device-0", "device-1"}}, response).ok());
  ASSERT_EQ(response.container_responses_size(), 2);
  const auto& second = response.container_responses(1);
  EXPECT_EQ(second.envs().at("TEST_DEVICES"), "device-0,device-1");
  EXPECT_EQ(second.annotations().at("example.com/test"), "device-0,device-1");
  ASSERT_EQ(second.mounts_size(), 1);
  EXPECT_EQ(second.mounts(0).container_path(), "/in/container");
  EXPECT_EQ(second.mounts(0).host_path(), "/on/host");
  EXPECT_TRUE(second.mounts(0).read_only());
  ASSERT_EQ(second.devices_size(), 1);
  EXPECT_EQ(second.devices(0).container_path(), "/dev/test");
  EXPECT_EQ(second.devices(0).host_path(), "/dev/null");
  EXPECT_EQ(second.devices(0).permissions(), "rw");
  ASSERT_EQ(second.cdi_devices_size(), 2);
  EXPECT_EQ(second.cdi_devices(1).name(), "example.com/test=device-1");
  EXPECT_EQ(response.container_responses(0).envs().at("TEST_DEVICES"), "device-2");
}

TEST_F(server_service, prefers_per_container_and_rejects_negative_size) {
  serve(std::make_shared<test_resource>(gpu, 3, true));
  v1beta1::PreferredAllocationRequest request;
  for (const int size : {1, 2}) {
    auto& one = *request.add_container_requests();
    one.add_available_deviceids("a");
    one.add_available_deviceids("b");
    one.set_allocation_size(size);
  }
  grpc::ClientContext context;
  set_deadline(context);
  v1beta1::PreferredAllocationResponse response;
  ASSERT_TRUE(stub_->GetPreferredAllocation(&context, request, &response).ok());
  ASSERT_EQ(response.container_responses_size(), 2);
  EXPECT_THAT(response.container_responses(0).deviceids(), ElementsAre("b"));
  EXPECT_THAT(response.container_responses(1).deviceids(), ElementsAre("a", "b"));
  request.mutable_container_requests(0)->set_allocation_size(-1);
  grpc::ClientContext another;
  set_deadline(another);
  const auto rejection = stub_->GetPreferredAllocation(&another, request, &response);
  EXPECT_EQ(rejection.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(
      rejection.error_message(),
      "prefer devices of \"nvidia.com/gpu\": -1 devices requested (request 0 or more devices)");
}

TEST_F(server_service, errors_become_statuses_with_full_text) {
  serve(std::make_shared<failing_resource>());
  v1beta1::AllocateResponse response;
  const auto twice = allocate({{"é", "é"}}, response);
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(twice.error_message(),
            "allocate \"nvidia.com/gpu\": device \"é\" is requested twice (request it once)");
  const auto other = allocate({}, response);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(other.error_message(), "something else");
  // Longer than a client accepts as metadata: the client would only get an error about the size.
  const auto long_text = allocate({{"a"}, {"b"}}, response);
  EXPECT_EQ(long_text.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(long_text.error_message(),
            "allocate \"nvidia.com/gpu\": " + std::string(1'973, 'x') + "…");
  grpc::ClientContext context;
  set_deadline(context);
  const auto stream = stub_->ListAndWatch(&context, {});
  v1beta1::ListAndWatchResponse list;
  EXPECT_FALSE(stream->Read(&list));
  const auto status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "list \"GPUs\": NVML is not available");
}

TEST_F(server_service, slow_reader_gets_fewer_lists_and_the_latest) {
  const auto resource = std::make_shared<test_resource>(gpu, 2'000);
  serve(resource);
  grpc::ClientContext context;
  set_deadline(context);
  const auto stream = stub_->ListAndWatch(&context, {});
  v1beta1::ListAndWatchResponse list;
  ASSERT_TRUE(stream->Read(&list));
  constexpr int changes = 200;
  for (int time = 1; time <= changes; ++time) {
    resource->set_health("device-0", time % 2 == 0);
    resource->set_numa_node("device-1", time);
    service_->publish();
  }
  int lists = 0;
  do {
    ASSERT_TRUE(stream->Read(&list));
    ++lists;
  } while (list.devices(1).topology().nodes(0).id() != changes);
  EXPECT_EQ(list.devices(0).health(), "Healthy");
  EXPECT_EQ(list.devices_size(), 2'000);
  EXPECT_LT(lists, changes);
}

TEST_F(server_service, each_stream_gets_the_list_and_ends_as_requested) {
  serve(std::make_shared<test_resource>(gpu, 2));
  std::array<grpc::ClientContext, 2> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1beta1::ListAndWatchResponse>>> streams;
  v1beta1::ListAndWatchResponse list;
  for (auto& each : contexts) {
    set_deadline(each);
    streams.push_back(stub_->ListAndWatch(&each, {}));
    ASSERT_TRUE(streams.back()->Read(&list));
    EXPECT_EQ(list.devices_size(), 2);
  }
  EXPECT_EQ(service_->streams().open, 2U);
  EXPECT_EQ(service_->streams().opened, 2U);
  contexts[0].TryCancel();
  ASSERT_TRUE(eventually([&] { return service_->streams().open == 1; }, seconds(20)));
  EXPECT_EQ(ended_, 1);
  service_->end(ending::after_empty_list);
  ASSERT_TRUE(streams[1]->Read(&list));
  EXPECT_EQ(list.devices_size(), 0);
  EXPECT_FALSE(streams[1]->Read(&list));
  EXPECT_TRUE(streams[1]->Finish().ok());
  ASSERT_TRUE(eventually([&] { return service_->streams().open == 0; }, seconds(20)));
  // A later stream behaves the same.
  grpc::ClientContext late;
  set_deadline(late);
  const auto stream = stub_->ListAndWatch(&late, {});
  ASSERT_TRUE(stream->Read(&list));
  EXPECT_EQ(list.devices_size(), 0);
  EXPECT_FALSE(stream->Read(&list));
}

TEST_F(server_service, replaced_resource_is_served) {
  serve(std::make_shared<test_resource>(gpu, 1));
  grpc::ClientContext context;
  set_deadline(context);
  const auto stream = stub_->ListAndWatch(&context, {});
  v1beta1::ListAndWatchResponse list;
  ASSERT_TRUE(stream->Read(&list));
  service_->replace(std::make_shared<test_resource>(gpu, 3));
  service_->publish();
  ASSERT_TRUE(stream->Read(&list));
  EXPECT_EQ(list.devices_size(), 3);
  v1beta1::AllocateResponse response;
  EXPECT_TRUE(allocate({{"device-2"}}, response).ok());
  context.TryCancel();
}

}  // namespace
}  // namespace gpushm_tests
