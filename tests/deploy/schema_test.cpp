// SPDX-License-Identifier: Apache-2.0
// The checks of manifests: schema and Pod Security.
#include "tests/deploy/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/deploy/pod_security.hpp"
#include "tests/docs/docs_text.hpp"

namespace gpushm_tests {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* restricted_pod =
    "apiVersion: v1\n"
    "kind: Pod\n"
    "metadata: {name: p}\n"
    "spec:\n"
    "  securityContext:\n"
    "    runAsNonRoot: true\n"
    "    seccompProfile: {type: RuntimeDefault}\n"
    "  containers:\n"
    "  - name: c\n"
    "    securityContext:\n"
    "      allowPrivilegeEscalation: false\n"
    "      capabilities: {drop: [ALL]}\n";

manifest one(const std::string& text) {
  return read_manifests(text, "x.yaml").at(0);
}

/// The pod above, with the first `from` replaced by `out`.
manifest changed(const std::string& from, const std::string& out) {
  std::string text = restricted_pod;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return one(text.replace(at, from.size(), out));
}

class schemas : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    known_.emplace(source_file("tests/deploy/schemas/kubernetes.json"));
  }
  [[nodiscard]] std::vector<std::string> check(const std::string& text) const {
    return known_->check(one(text));
  }
  std::optional<schema> known_;
};

TEST_F(schemas, valid_pod_has_no_findings) {
  EXPECT_THAT(check(restricted_pod), IsEmpty());
  EXPECT_THAT(known_->release(), "1.36");
}

TEST_F(schemas, unknown_fields_are_reported) {
  EXPECT_THAT(
      known_->check(changed("securityContext:\n      allow", "securityContexts:\n      allow")),
      ElementsAre("x.yaml:10:5: spec.containers[0].securityContexts is not a field"));
  EXPECT_THAT(check("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n"
                    "status: {}\n"),
              ElementsAre("x.yaml:5:1: status is not a field"));
  EXPECT_THAT(check("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"
                    "spec: {devices: {requests: [{name: r, deviceClassName: d}]}}\n"),
              ElementsAre("x.yaml:4:39: spec.devices.requests[0].deviceClassName is not a field"));
  EXPECT_THAT(check("apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\n"
                    "metadata: {name: c}\n"
                    "spec: {devices: {requests: [{name: r, exactly: {deviceClassName: d}}]}}\n"),
              ElementsAre("x.yaml:4:39: spec.devices.requests[0].exactly is not a field"));
}

TEST_F(schemas, missing_and_duplicate_fields_are_reported) {
  EXPECT_THAT(known_->check(changed("name: c\n    ", "")),
              ElementsAre("x.yaml:9:5: spec.containers[0].name is missing"));
  EXPECT_THAT(check("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n"),
              ElementsAre("x.yaml:4:7: spec.containers is missing"));
  EXPECT_THAT(known_->check(
                  changed("runAsNonRoot: true\n", "runAsNonRoot: true\n    runAsNonRoot: true\n")),
              ElementsAre("x.yaml:7:5: spec.securityContext.runAsNonRoot is duplicated"));
}

TEST_F(schemas, wrong_types_are_reported) {
  EXPECT_THAT(known_->check(changed("runAsNonRoot: true", "runAsNonRoot: \"true\"")),
              ElementsAre("x.yaml:6:19: spec.securityContext.runAsNonRoot must be boolean, not a "
                          "string"));
  // YAML reads it as a boolean, and kubectl refuses it.
  EXPECT_THAT(known_->check(changed("name: c\n", "name: c\n    env: [{name: E, value: off}]\n")),
              ElementsAre("x.yaml:10:28: spec.containers[0].env[0].value must be string, not a "
                          "boolean"));
  EXPECT_THAT(known_->check(changed("[ALL]", "ALL")),
              ElementsAre("x.yaml:12:28: spec.containers[0].securityContext.capabilities.drop must "
                          "be array, not something else"));
  EXPECT_THAT(known_->check(changed("{type: RuntimeDefault}", "RuntimeDefault")),
              ElementsAre("x.yaml:7:21: spec.securityContext.seccompProfile must be object, not "
                          "something else"));
}

TEST_F(schemas, numbers_are_valid_where_kubernetes_accepts_them) {
  EXPECT_THAT(known_->check(changed("name: c\n",
                                    "name: c\n"
                                    "    resources: {limits: {cpu: 0.5, memory: 1Gi, a.b/c: 1}}\n"
                                    "    livenessProbe: {httpGet: {port: http}}\n"
                                    "    readinessProbe: {httpGet: {port: 80}}\n")),
              IsEmpty());
}

TEST_F(schemas, unknown_kinds_are_reported) {
  EXPECT_THAT(
      check("apiVersion: resource.k8s.io/v1beta3\nkind: DeviceClass\nmetadata: {name: d}\n"),
      ElementsAre("x.yaml:1:1: no schema of DeviceClass of resource.k8s.io/v1beta3"));
}

TEST(manifests, have_positions_in_the_file) {
  const auto manifests = read_manifests(
      "---\n# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n", "x.yaml");
  ASSERT_EQ(manifests.size(), 1U);
  EXPECT_EQ(manifests[0].place(*find(manifests[0].root(), {"metadata", "name"})), "x.yaml:6:18");
  EXPECT_THROW((void)read_manifests("kind: Pod\n", "x.yaml"), std::runtime_error);
  EXPECT_THROW((void)read_manifests("a: [\n", "x.yaml"), std::runtime_error);
}

struct refused {
  const char* from;
  const char* to;
  const char* what;
};
void PrintTo(const refused& value, std::ostream* to) {
  *to << value.what;
}
class pod_security : public testing::TestWithParam<refused> {};

TEST_P(pod_security, violation_is_reported) {
  const auto manifests = not_restricted(changed(GetParam().from, GetParam().to));
  ASSERT_EQ(manifests.size(), 1U) << testing::PrintToString(manifests);
  EXPECT_EQ(manifests[0].substr(manifests[0].find(": ") + 2), GetParam().what);
}

INSTANTIATE_TEST_SUITE_P(
    rules,
    pod_security,
    testing::Values(
        refused{"spec:\n", "spec:\n  hostPID: true\n", "hostPID"},
        refused{"spec:\n", "spec:\n  hostIPC: true\n", "hostIPC"},
        refused{"spec:\n", "spec:\n  hostNetwork: true\n", "hostNetwork"},
        refused{"spec:\n",
                "spec:\n  volumes: [{name: v, hostPath: {path: /x}}]\n",
                "volume of type hostPath"},
        refused{"runAsNonRoot: true\n", "fsGroup: 1\n", "runAsNonRoot is not true"},
        refused{"runAsNonRoot: true\n", "runAsNonRoot: true\n    runAsUser: 0\n", "runAsUser 0"},
        refused{"runAsNonRoot: true\n",
                "runAsNonRoot: true\n    sysctls: [{name: a, value: b}]\n",
                "sysctls"},
        refused{"    seccompProfile: {type: RuntimeDefault}\n", "", "no seccompProfile"},
        refused{"RuntimeDefault", "Unconfined", "seccompProfile Unconfined"},
        refused{"allowPrivilegeEscalation: false",
                "readOnlyRootFilesystem: true",
                "allowPrivilegeEscalation is not false"},
        refused{"allowPrivilegeEscalation: false",
                "allowPrivilegeEscalation: false\n      privileged: true",
                "privileged"},
        refused{"allowPrivilegeEscalation: false",
                "allowPrivilegeEscalation: false\n      procMount: Unmasked",
                "procMount Unmasked"},
        refused{"{drop: [ALL]}", "{drop: [NET_RAW]}", "capabilities are not all dropped"},
        refused{"{drop: [ALL]}", "{drop: [ALL], add: [IPC_LOCK]}", "capability IPC_LOCK"},
        refused{
            "name: c\n", "name: c\n    ports: [{containerPort: 1, hostPort: 1}]\n", "hostPort 1"}));

TEST(pod_security_standard, restricted_pod_has_no_violations) {
  EXPECT_THAT(not_restricted(one(restricted_pod)), IsEmpty());
  EXPECT_THAT(not_restricted(changed("{drop: [ALL]}", "{drop: [ALL], add: [NET_BIND_SERVICE]}")),
              IsEmpty());
  // Init containers are checked like other containers.
  EXPECT_EQ(not_restricted(changed("spec:\n", "spec:\n  initContainers: [{name: i}]\n")).size(),
            2U);
}

}  // namespace
}  // namespace gpushm_tests
