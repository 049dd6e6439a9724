// SPDX-License-Identifier: Apache-2.0
// The fake API server keeps to what a real one does, where other tests rely on it.

#include <gmock/gmock.h>

#include <fstream>
#include <stop_token>
#include <thread>

#include "testing/process/child.hpp"
#include "testing/process/programs.hpp"
#include "testing/process/temp_dir.hpp"
#include "tests/kubelet/rest/world.hpp"

namespace gpushm_tests {
namespace {

using gpushm::kube::api_error;
using gpushm::kube::client;
using gpushm::testing::fake_kube_api;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class fake_kube : public ::testing::Test {
 protected:
  /// What a creation is refused with.
  [[nodiscard]] std::string refused(const json& object) const {
    return failure_of([&] { client_.create(slices, object); });
  }

  fake_kube_api server_;
  client client_{{.url = server_.url()}};
};

TEST_F(fake_kube, versions_are_converted_into_each_other) {
  json old = slice("s1");
  old["apiVersion"] = "resource.k8s.io/v1beta1";
  old["spec"]["devices"] = {
      {{"name", "d"}, {"basic", {{"attributes", {{"type", {{"string", "share"}}}}}}}}};
  const std::string beta = "/apis/resource.k8s.io/v1beta1/resourceslices";
  const json made = client_.create(beta, old);
  EXPECT_EQ(made.at("spec").at("devices"), old["spec"]["devices"]);
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

TEST_F(fake_kube, objects_keep_to_the_limits_of_the_api) {
  json many = slice("s1");
  many["spec"]["devices"] = json::array();
  for (int i = 0; i < 129; ++i) {
    many["spec"]["devices"].push_back({{"name", "d" + std::to_string(i)}});
  }
  EXPECT_THAT(refused(many), HasSubstr("spec.devices: Too many: 129: must have at most 128 items"));
  many["spec"]["devices"].erase(128);
  EXPECT_EQ(refused(many), "no error");

  const auto with = [](const char* pointer, const json& value) {
    json object = slice("s2");
    object[json::json_pointer(pointer)] = value;
    return object;
  };
  EXPECT_THAT(refused(with("/metadata/name", "Upper")), HasSubstr("metadata.name: Invalid value"));
  EXPECT_THAT(refused(with("/spec/driver", "a_b")), HasSubstr("spec.driver: Invalid value"));
  EXPECT_THAT(
      refused(with("/spec/pool/resourceSliceCount", 0)),
      HasSubstr("spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"));
  EXPECT_THAT(refused(with("/spec/allNodes", true)), HasSubstr("spec: Invalid value"));
  EXPECT_THAT(refused(with("/spec/devices/0/name", "Share_0")),
              HasSubstr("spec.devices[0].name: Invalid value"));
  EXPECT_THAT(refused(with("/spec/devices/1", {{"name", "share-0"}})),
              HasSubstr("spec.devices[1]: Duplicate value: \"share-0\""));
  EXPECT_THAT(refused(with("/spec/devices/0/attributes", {{"v", {{"version", "550.163.01"}}}})),
              HasSubstr("spec.devices[0].attributes[v].version: Invalid value: \"550.163.01\""));
  EXPECT_THAT(refused(with("/spec/devices/0/attributes", {{"v", {{"version", "550.163.1"}}}})),
              HasSubstr("no error"));
}

TEST_F(fake_kube, what_a_slice_is_of_cannot_be_changed) {
  const json made = client_.create(slices, slice("s1"));
  json moved = made;
  moved["spec"]["nodeName"] = "n2";
  EXPECT_THAT(failure_of([&] { client_.replace(std::string(slices) + "/s1", moved); }),
              HasSubstr("spec.nodeName: Invalid value: \"n2\": field is immutable"));
}

TEST_F(fake_kube, the_status_of_a_claim_is_a_resource_of_its_own) {
  const std::string path = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c";
  const json made = server_.put(path, {{"spec", json::object()}});
  json with_status = made;
  with_status["status"] = {{"reservedFor", json::array()}};
  const json replaced = client_.replace(path, with_status);
  EXPECT_FALSE(replaced.contains("status"));
  with_status["metadata"] = replaced.at("metadata");
  EXPECT_TRUE(client_.replace(path + "/status", with_status).contains("status"));
}

TEST_F(fake_kube, an_object_with_finalizers_waits_for_them) {
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

TEST_F(fake_kube, what_is_not_served_is_not_found) {
  server_.set_resource_versions({"v1beta1"});
  EXPECT_EQ(
      failure_of([&] { (void)client_.list(slices); }),
      "list \"/apis/resource.k8s.io/v1/resourceslices\": the API server answered 404: 404 page "
      "not found");
}

TEST_F(fake_kube, names_can_be_made_up) {
  json object = slice("");
  object["metadata"] = {{"generateName", "n1-gpushm.dev-"}};
  const std::string name = name_of(client_.create(slices, object));
  EXPECT_THAT(name, ::testing::MatchesRegex("n1-gpushm\\.dev-[a-z0-9]{5}"));
}

TEST_F(fake_kube, items_of_a_list_do_not_say_what_they_are_and_events_do) {
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
      [&](const gpushm::kube::watch_event& event) {
        seen.push_back(event.object);
        if (event.type == "BOOKMARK") {
          enough.request_stop();
        }
      },
      enough.get_token());
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0].at("kind"), "ResourceSlice");
  EXPECT_EQ(seen[0].at("apiVersion"), "resource.k8s.io/v1");
  // An empty object of the type: nothing in it counts but the version.
  EXPECT_EQ(seen[1].at("kind"), "ResourceSlice");
  EXPECT_EQ(seen[1].at("spec").at("driver"), "");
  EXPECT_FALSE(seen[1].at("metadata").contains("name"));
}

TEST_F(fake_kube, who_wrote_an_object_is_in_it_and_is_not_a_change) {
  const json made = client_.create(slices, slice("s1"));
  ASSERT_EQ(made.at("metadata").at("managedFields").size(), 1U);
  EXPECT_EQ(made.at("metadata").at("managedFields")[0].at("manager"), "gpushmd");
  json same = slice("s1");
  same["metadata"]["resourceVersion"] = made.at("metadata").at("resourceVersion");
  EXPECT_EQ(client_.replace(std::string(slices) + "/s1", same), made);
  const client other({.url = server_.url()}, {.user_agent = "kubectl/v1.36"});
  json changed = made;
  changed["spec"]["devices"].push_back({{"name", "d9"}});
  EXPECT_EQ(
      other.replace(std::string(slices) + "/s1", changed).at("metadata").at("managedFields").size(),
      2U);
}

TEST_F(fake_kube, unknown_fields_are_dropped) {
  json object = slice("s1");
  object["spec"]["newer"] = 1;
  object["spec"]["devices"][0]["newer"] = true;
  const json made = client_.create(slices, object);
  EXPECT_FALSE(made.at("spec").contains("newer"));
  EXPECT_EQ(made.at("spec").at("devices"), slice("s1").at("spec").at("devices"));
}

TEST_F(fake_kube, a_webhook_has_its_say) {
  fake_kube_api mutating({.mutate = [](json& object) {
    object["metadata"]["labels"] = {{"seen", "yes"}};
  }});
  const client asks({.url = mutating.url()});
  EXPECT_EQ(asks.create(slices, slice("s1")).at("metadata").at("labels").at("seen"), "yes");
}

TEST(fake_kube_policy, an_agent_writes_its_own_slice_only) {
  fake_kube_api server({.agents = {{"token-1", "n1"}, {"token-2", "n2"}, {"token-old", ""}}});
  const client first({.url = server.url(), .token = "token-1"});
  const client second({.url = server.url(), .token = "token-2"});
  const client old({.url = server.url(), .token = "token-old"});
  const std::string said =
      "ValidatingAdmissionPolicy 'resourceslices.gpushm.dev' with binding "
      "'resourceslices.gpushm.dev' denied request: ";
  const auto refused = [&](const client& by, const json& object) {
    return failure_of([&] { by.create(slices, object); });
  };
  EXPECT_EQ(refused(first, slice("n1-gpushm.dev")), "no error");
  json withdrawing = slice("evil", "n2");
  withdrawing["spec"]["pool"]["name"] = "n1";
  EXPECT_THAT(refused(second, withdrawing),
              HasSubstr("the API server answered 403 Forbidden: resourceslices.resource.k8s.io "
                        "\"evil\" is forbidden: " +
                        said + "the agent of node n2 may write the pool of its own node only"));
  // Before it is looked at whether the name is taken.
  EXPECT_THAT(refused(second, slice("n1-gpushm.dev", "n2")),
              HasSubstr(said + "the agent of node n2 may create its own ResourceSlice only"));
  EXPECT_THAT(refused(old, slice("n1-gpushm.dev")), HasSubstr(said + "the token does not say"));
  const std::string path = std::string(slices) + "/n1-gpushm.dev";
  EXPECT_THAT(failure_of([&] { second.remove(path); }),
              HasSubstr("the agent of node n2 may write ResourceSlices of its own node only"));
  EXPECT_THAT(failure_of([&] { second.replace(path, slice("n1-gpushm.dev")); }),
              HasSubstr("the agent of node n2 may write ResourceSlices of its own node only"));
  EXPECT_EQ(failure_of([&] { first.remove(path); }), "no error");
  // Others are not asked about.
  EXPECT_EQ(refused(client({.url = server.url(), .token = "admin"}), withdrawing), "no error");
}

TEST(fake_kube_program, serves_and_obeys) {
  const gpushm_testing::temp_dir directory;
  auto server = gpushm_testing::child::start({.argv = {gpushm_testing::own_program("fake-kube-api"),
                                                       "--tls",
                                                       directory.path(),
                                                       "--token",
                                                       "one"}});
  server.wait_for_line("^serving https://127\\.0\\.0\\.1:[0-9]+$", seconds(20));
  const client asks(gpushm::kube::kubeconfig_access(directory / "kubeconfig"));
  server.write("put /api/v1/nodes/n1 {}\n");
  server.wait_for_line("\"name\":\"n1\"", seconds(20));
  EXPECT_THAT(names_of(asks.list(nodes).at("items")), ::testing::ElementsAre("n1"));
  server.write("tokens two\n");
  server.wait_for_line("^\"ok\"$", seconds(20));
  EXPECT_THROW((void)asks.list(nodes), api_error);
  std::ofstream(directory / "token") << "two-is-longer";
  server.write("tokens two-is-longer\n");
  server.wait_for_line("^\"ok\"$", seconds(20));
  EXPECT_EQ(failure_of([&] { (void)asks.list(nodes); }), "no error");
  server.write("nonsense\n");
  server.wait_for_line("no such command", seconds(20));
  server.write("quit\n");
  EXPECT_EQ(server.wait_exit(seconds(20)), gpushm_testing::exited(0));
}

}  // namespace
}  // namespace gpushm_tests
