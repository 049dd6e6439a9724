// SPDX-License-Identifier: Apache-2.0
// The fake API server keeps to what a real one does, where other tests rely on it.

#include <gmock/gmock.h>

#include <fstream>

#include "process/child.hpp"
#include "process/programs.hpp"
#include "process/temp_dir.hpp"
#include "rest_world.hpp"

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
  EXPECT_FALSE(client_.replace(path, with_status).contains("status"));
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
