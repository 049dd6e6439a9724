// SPDX-License-Identifier: Apache-2.0
// The fake API server behaves like a real one where other tests rely on it.

#include <gmock/gmock.h>

#include <fstream>
#include <stop_token>
#include <thread>

#include "tests/kubelet/rest/world.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::api_client::api_error;
using gpushm::api_client::client;
using gpushm::testing::fake_kube_api;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class fake_kube : public ::testing::Test {
 protected:
  /// The error of a creation.
  [[nodiscard]] std::string rejection(const json& object) const {
    return failure_of([&] { client_.create(slices, object); });
  }

  fake_kube_api server_;
  client client_{{.url = server_.url()}};
};

TEST_F(fake_kube, versions_are_converted) {
  json old = slice("s1");
  old["apiVersion"] = "resource.k8s.io/v1beta1";
  old["spec"]["devices"] = {
      {{"name", "d"}, {"basic", {{"attributes", {{"type", {{"string", "share"}}}}}}}}};
  const std::string beta = "/apis/resource.k8s.io/v1beta1/resourceslices";
  const json created = client_.create(beta, old);
  EXPECT_EQ(created.at("spec").at("devices"), old["spec"]["devices"]);
  const json now = client_.get(std::string(slices) + "/s1");
  EXPECT_EQ(now.at("apiVersion"), "resource.k8s.io/v1");
  EXPECT_EQ(now.at("spec").at("devices")[0],
            (json{{"name", "d"}, {"attributes", {{"type", {{"string", "share"}}}}}}));
  EXPECT_EQ(client_.get("/apis/resource.k8s.io/v1beta2/resourceslices/s1").at("spec"),
            now.at("spec"));

  const std::string claims = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims";
  const json claim{
      {"apiVersion", "resource.k8s.io/v1"},
      {"kind", "ResourceClaim"},
      {"metadata", {{"name", "c"}}},
      {"spec",
       {{"devices",
         {{"requests",
           {{{"name", "share"}, {"exactly", {{"deviceClassName", "share.gpushm.dev"}}}}}}}}}}};
  client_.create(claims, claim);
  EXPECT_EQ(client_.get("/apis/resource.k8s.io/v1beta1/namespaces/a/resourceclaims/c")
                .at("spec")
                .at("devices")
                .at("requests")[0],
            (json{{"name", "share"}, {"deviceClassName", "share.gpushm.dev"}}));
}

TEST_F(fake_kube, objects_respect_api_limits) {
  json many = slice("s1");
  many["spec"]["devices"] = json::array();
  for (int i = 0; i < 129; ++i) {
    many["spec"]["devices"].push_back({{"name", "d" + std::to_string(i)}});
  }
  EXPECT_THAT(rejection(many),
              HasSubstr("spec.devices: Too many: 129: must have at most 128 items"));
  many["spec"]["devices"].erase(128);
  EXPECT_EQ(rejection(many), "no error");

  const auto with = [](const char* pointer, const json& value) {
    json object = slice("s2");
    object[json::json_pointer(pointer)] = value;
    return object;
  };
  EXPECT_THAT(rejection(with("/metadata/name", "Upper")),
              HasSubstr("metadata.name: Invalid value"));
  EXPECT_THAT(rejection(with("/spec/driver", "a_b")), HasSubstr("spec.driver: Invalid value"));
  EXPECT_THAT(
      rejection(with("/spec/pool/resourceSliceCount", 0)),
      HasSubstr("spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"));
  EXPECT_THAT(rejection(with("/spec/allNodes", true)), HasSubstr("spec: Invalid value"));
  EXPECT_THAT(rejection(with("/spec/devices/0/name", "Share_0")),
              HasSubstr("spec.devices[0].name: Invalid value"));
  EXPECT_THAT(rejection(with("/spec/devices/1", {{"name", "share-0"}})),
              HasSubstr("spec.devices[1]: Duplicate value: \"share-0\""));
  EXPECT_THAT(rejection(with("/spec/devices/0/attributes", {{"v", {{"version", "550.163.01"}}}})),
              HasSubstr("spec.devices[0].attributes[v].version: Invalid value: \"550.163.01\""));
  EXPECT_THAT(rejection(with("/spec/devices/0/attributes", {{"v", {{"version", "550.163.1"}}}})),
              HasSubstr("no error"));
}

TEST_F(fake_kube, slice_node_is_immutable) {
  const json created = client_.create(slices, slice("s1"));
  json moved = created;
  moved["spec"]["nodeName"] = "n2";
  EXPECT_THAT(failure_of([&] { client_.replace(std::string(slices) + "/s1", moved); }),
              HasSubstr("spec.nodeName: Invalid value: \"n2\": field is immutable"));
}

TEST_F(fake_kube, claim_status_is_a_subresource) {
  const std::string path = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c";
  const json created = server_.put(path, {{"spec", json::object()}});
  json with_status = created;
  with_status["status"] = {{"reservedFor", json::array()}};
  const json replaced = client_.replace(path, with_status);
  EXPECT_FALSE(replaced.contains("status"));
  with_status["metadata"] = replaced.at("metadata");
  EXPECT_TRUE(client_.replace(path + "/status", with_status).contains("status"));
}

TEST_F(fake_kube, finalizers_delay_deletion) {
  json object = slice("s1");
  object["metadata"]["finalizers"] = {"gpushm.dev/keep"};
  client_.create(slices, object);
  const std::string path = std::string(slices) + "/s1";
  client_.remove(path);
  json waiting = client_.get(path);
  EXPECT_TRUE(waiting.at("metadata").contains("deletionTimestamp"));
  waiting["metadata"].erase("finalizers");
  client_.replace(path, waiting);
  EXPECT_THROW((void)client_.get(path), api_error);
}

TEST_F(fake_kube, unserved_version_is_not_found) {
  server_.set_resource_versions({"v1beta1"});
  EXPECT_EQ(
      failure_of([&] { (void)client_.list(slices); }),
      "list \"/apis/resource.k8s.io/v1/resourceslices\": the API server replied with 404: 404 page "
      "not found");
}

TEST_F(fake_kube, generate_name_is_supported) {
  json object = slice("");
  object["metadata"] = {{"generateName", "n1-gpushm.dev-"}};
  const std::string name = name_of(client_.create(slices, object));
  EXPECT_THAT(name, ::testing::MatchesRegex("n1-gpushm\\.dev-[a-z0-9]{5}"));
}

TEST_F(fake_kube, list_items_lack_kind_and_events_have_it) {
  server_.put(std::string(slices) + "/s1", slice("s1"));
  const json list = client_.list(slices);
  EXPECT_EQ(list.at("kind"), "ResourceSliceList");
  EXPECT_FALSE(list.at("items")[0].contains("apiVersion"));
  EXPECT_FALSE(list.at("items")[0].contains("kind"));
  EXPECT_EQ(client_.get(std::string(slices) + "/s1").at("kind"), "ResourceSlice");
  std::vector<json> seen;
  std::stop_source enough;
  const std::jthread bookmarks([&] {
    if (server_.wait_for_watches(1, seconds(20))) {
      server_.send_bookmarks();
    }
  });
  client_.watch(
      slices,
      "0",
      {},
      [&](const gpushm::api_client::watch_event& event) {
        seen.push_back(event.object);
        if (event.type == "BOOKMARK") {
          enough.request_stop();
        }
      },
      enough.get_token());
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0].at("kind"), "ResourceSlice");
  EXPECT_EQ(seen[0].at("apiVersion"), "resource.k8s.io/v1");
  // A bookmark has an empty object of the type, of which only the version is valid.
  EXPECT_EQ(seen[1].at("kind"), "ResourceSlice");
  EXPECT_EQ(seen[1].at("spec").at("driver"), "");
  EXPECT_FALSE(seen[1].at("metadata").contains("name"));
}

TEST_F(fake_kube, managed_fields_are_recorded_without_a_change) {
  const json created = client_.create(slices, slice("s1"));
  ASSERT_EQ(created.at("metadata").at("managedFields").size(), 1U);
  EXPECT_EQ(created.at("metadata").at("managedFields")[0].at("manager"), "gpushmd");
  json same = slice("s1");
  same["metadata"]["resourceVersion"] = created.at("metadata").at("resourceVersion");
  EXPECT_EQ(client_.replace(std::string(slices) + "/s1", same), created);
  const client other({.url = server_.url()}, {.user_agent = "kubectl/v1.36"});
  json changed = created;
  changed["spec"]["devices"].push_back({{"name", "d9"}});
  EXPECT_EQ(
      other.replace(std::string(slices) + "/s1", changed).at("metadata").at("managedFields").size(),
      2U);
}

TEST_F(fake_kube, unknown_fields_are_dropped) {
  json object = slice("s1");
  object["spec"]["newer"] = 1;
  object["spec"]["devices"][0]["newer"] = true;
  const json created = client_.create(slices, object);
  EXPECT_FALSE(created.at("spec").contains("newer"));
  EXPECT_EQ(created.at("spec").at("devices"), slice("s1").at("spec").at("devices"));
}

TEST_F(fake_kube, mutating_webhook_is_applied) {
  fake_kube_api mutating({.mutate = [](json& object) {
    object["metadata"]["labels"] = {{"seen", "yes"}};
  }});
  const client requester({.url = mutating.url()});
  EXPECT_EQ(requester.create(slices, slice("s1")).at("metadata").at("labels").at("seen"), "yes");
}

TEST(fake_kube_policy, agent_writes_only_its_own_slice) {
  fake_kube_api server({.agents = {{"token-1", "n1"}, {"token-2", "n2"}, {"token-old", ""}}});
  const client first({.url = server.url(), .token = "token-1"});
  const client second({.url = server.url(), .token = "token-2"});
  const client old({.url = server.url(), .token = "token-old"});
  const std::string denied =
      "ValidatingAdmissionPolicy 'resourceslices.gpushm.dev' with binding "
      "'resourceslices.gpushm.dev' denied request: ";
  const auto rejection = [&](const client& client, const json& object) {
    return failure_of([&] { client.create(slices, object); });
  };
  EXPECT_EQ(rejection(first, slice("n1-gpushm.dev")), "no error");
  json withdrawing = slice("evil", "n2");
  withdrawing["spec"]["pool"]["name"] = "n1";
  EXPECT_THAT(
      rejection(second, withdrawing),
      HasSubstr("the API server replied with 403 Forbidden: resourceslices.resource.k8s.io "
                "\"evil\" is forbidden: " +
                denied + "the agent of node n2 may only write to the pool of its own node"));
  // Reported before the check whether the name exists.
  EXPECT_THAT(rejection(second, slice("n1-gpushm.dev", "n2")),
              HasSubstr(denied + "the agent of node n2 may only create its own ResourceSlice"));
  EXPECT_THAT(rejection(old, slice("n1-gpushm.dev")),
              HasSubstr(denied + "the token does not name"));
  const std::string path = std::string(slices) + "/n1-gpushm.dev";
  EXPECT_THAT(failure_of([&] { second.remove(path); }),
              HasSubstr("the agent of node n2 may only write ResourceSlices of its own node"));
  EXPECT_THAT(failure_of([&] { second.replace(path, slice("n1-gpushm.dev")); }),
              HasSubstr("the agent of node n2 may only write ResourceSlices of its own node"));
  EXPECT_EQ(failure_of([&] { first.remove(path); }), "no error");
  // The policy does not apply to other accounts.
  EXPECT_EQ(rejection(client({.url = server.url(), .token = "admin"}), withdrawing), "no error");
}

TEST(fake_kube_program, serves_and_executes_commands) {
  const gpushm_testing::temp_dir directory;
  auto server = gpushm_testing::child::start({.argv = {gpushm_testing::own_program("fake-kube-api"),
                                                       "--tls",
                                                       directory.path(),
                                                       "--token",
                                                       "one"}});
  server.wait_for_line("^serving https://127\\.0\\.0\\.1:[0-9]+$", seconds(20));
  const client requester(gpushm::api_client::kubeconfig_access(directory / "kubeconfig"));
  server.write("put /api/v1/nodes/n1 {}\n");
  server.wait_for_line("\"name\":\"n1\"", seconds(20));
  EXPECT_THAT(names_of(requester.list(nodes).at("items")), ::testing::ElementsAre("n1"));
  server.write("tokens two\n");
  server.wait_for_line("^\"ok\"$", seconds(20));
  EXPECT_THROW((void)requester.list(nodes), api_error);
  std::ofstream(directory / "token") << "two-is-longer";
  server.write("tokens two-is-longer\n");
  server.wait_for_line("^\"ok\"$", seconds(20));
  EXPECT_EQ(failure_of([&] { (void)requester.list(nodes); }), "no error");
  server.write("nonsense\n");
  server.wait_for_line("no such command", seconds(20));
  server.write("quit\n");
  EXPECT_EQ(server.wait_exit(seconds(20)), gpushm_testing::exited(0));
}

}  // namespace
}  // namespace gpushm_tests
