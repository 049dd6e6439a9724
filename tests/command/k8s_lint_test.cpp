// SPDX-License-Identifier: Apache-2.0
// Each rule of `gpushm k8s lint` with a manifest that violates it and one that does not; kinds and
// forms of manifests; the examples of this project.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "apps/gpushm/k8s/lint.hpp"
#include "tests/command/k8s_linted.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::k8s::finding;
using gpushm::k8s::lint_options;
using gpushm::k8s::manifests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

/// `text` with every `from` replaced by `out`.
std::string with(std::string text, const std::string& from, const std::string& out) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + out.size())) {
    text.replace(at, from.size(), out);
  }
  return text;
}

/// A pod without findings; <NAME> marks the parts to insert.
constexpr const char* good_pod = R"(apiVersion: v1
kind: Pod
metadata:
  name: <name>
  namespace: ns
  labels: {pair: <name>}
spec:
  <pod>
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: x
    <container>
    resources: {limits: {<resources>}}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      <context>
)";

struct parts {
  std::string name = "a";
  std::string pod = "";
  std::string container = "";
  std::string resources = "";
  std::string context = "";
};
std::string pod(const parts& info) {
  std::string text = good_pod;
  text = with(text, "<name>", info.name);
  text = with(text, "<pod>", info.pod);
  text = with(text, "<container>", info.container);
  text = with(text, "<resources>", info.resources);
  return with(text, "<context>", info.context);
}

TEST(k8s_lint, minimal_pod_passes) {
  EXPECT_THAT(linted(pod({})), IsEmpty());
  EXPECT_THAT(linted(pod({.resources = "nvidia.com/gpu: 1, gpushm.dev/share: 1"})), IsEmpty());
}

struct rule_case {
  std::string rule;
  std::string bad;
  std::string good;
};
void PrintTo(const rule_case& info, std::ostream* to) {
  *to << info.rule;
}

class k8s_rule : public ::testing::TestWithParam<rule_case> {};

TEST_P(k8s_rule, reports_only_its_violation) {
  const auto findings = linted(GetParam().bad);
  EXPECT_THAT(rules_of(findings), ElementsAre(GetParam().rule));
  ASSERT_THAT(findings, Not(IsEmpty()));
  for (const finding& each : findings) {
    EXPECT_GT(each.line, 0);
    EXPECT_GT(each.column, 0);
    EXPECT_THAT(each.object, HasSubstr("Pod ns/"));
    EXPECT_THAT(each.why, Not(HasSubstr("  ")));
    EXPECT_FALSE(each.why.ends_with('.')) << each.why;
  }
  EXPECT_THAT(linted(GetParam().good), IsEmpty());
}

std::vector<rule_case> pod_cases() {
  const std::string ok = pod({});
  return {
      {"host-pid", pod({.pod = "hostPID: true"}), pod({.pod = "hostPID: false"})},
      {"host-ipc", pod({.pod = "hostIPC: true"}), pod({.pod = "hostIPC: false"})},
      {"host-network", pod({.pod = "hostNetwork: true"}), pod({.pod = "hostNetwork: false"})},
      {"share-process-namespace",
       pod({.pod = "shareProcessNamespace: true"}),
       pod({.pod = "shareProcessNamespace: false"})},
      {"host-path",
       pod({.pod = "volumes: [{name: v, hostPath: {path: /dev/shm}}]"}),
       pod({.pod = "volumes: [{name: v, emptyDir: {medium: Memory}}]"})},
      {"privileged", pod({.context = "privileged: true"}), pod({.context = "privileged: false"})},
      {"capability",
       with(ok, "{drop: [ALL]}", "{drop: [ALL], add: [IPC_LOCK, SYS_PTRACE, CAP_SYS_ADMIN]}"),
       with(ok, "{drop: [ALL]}", "{drop: [ALL], add: [NET_BIND_SERVICE]}")},
      {"capabilities-kept", with(ok, "{drop: [ALL]}", "{drop: [NET_RAW]}"), ok},
      {"seccomp-unconfined",
       pod({.context = "seccompProfile: {type: Unconfined}"}),
       pod({.context = "seccompProfile: {type: Localhost, localhostProfile: p.json}"})},
      {"seccomp-missing",
       with(ok, ", seccompProfile: {type: RuntimeDefault}", ""),
       with(pod({.context = "seccompProfile: {type: RuntimeDefault}"}),
            ", seccompProfile: {type: RuntimeDefault}",
            "")},
      {"privilege-escalation",
       with(ok, "allowPrivilegeEscalation: false", "privileged: false"),
       ok},
      {"run-as-root",
       with(ok, "runAsNonRoot: true", "runAsNonRoot: false"),
       with(pod({.context = "runAsNonRoot: true"}), "{runAsNonRoot: true, ", "{")},
      {"visible-devices",
       pod({.container = "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]"}),
       pod({.container = "env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]"})},
  };
}
INSTANTIATE_TEST_SUITE_P(pods, k8s_rule, ::testing::ValuesIn(pod_cases()), [](const auto& test) {
  return with(test.param.rule, "-", "_");
});

std::string pair(const parts& first, const parts& second, const std::string& more = {}) {
  return pod(first) + "---\n" + pod(second) + more;
}

constexpr const char* claim_text = R"(---
apiVersion: resource.k8s.io/v1
kind: <kind>
metadata: {name: c, namespace: ns}
spec: <spec>
)";
std::string claim(const std::string& classes) {
  return with(with(claim_text, "<kind>", "ResourceClaim"), "<spec>", classes);
}

std::vector<rule_case> pair_cases() {
  const std::string pool = "nvidia.com/gpu: 1, gpushm.dev/share: 1";
  const std::string replicas = "nvidia.com/gpu.shared: 1, gpushm.dev/share: 1";
  const std::string one_gpu = "gpushm.dev/gpu-0: 1, gpushm.dev/share: 1";
  const std::string follows =
      "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: "
      "kubernetes.io/hostname, labelSelector: {matchLabels: {pair: a}}}]}}";
  const std::string zone = with(follows, "kubernetes.io/hostname", "topology.kubernetes.io/zone");
  const std::string named = "resourceClaims: [{name: c, resourceClaimName: c}]";
  const std::string from = "resourceClaims: [{name: c, resourceClaimTemplateName: c}]";
  const std::string both =
      "{devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com}}, {name: s, "
      "exactly: {deviceClassName: share.gpushm.dev}}]}}";
  const std::string share_only =
      "{devices: {requests: [{name: s, deviceClassName: share.gpushm.dev}]}}";
  const std::string of_template =
      with(with(claim_text, "<kind>", "ResourceClaimTemplate"), "<spec>", "{spec: " + both + "}");
  return {
      {"gpu-not-promised",
       pair({.resources = pool}, {.name = "b", .pod = follows, .resources = pool}),
       pair({.resources = one_gpu}, {.name = "b", .pod = follows, .resources = one_gpu})},
      {"gpu-not-promised",
       pair({.resources = replicas}, {.name = "b", .pod = follows, .resources = replicas}),
       pair({.pod = named}, {.name = "b", .pod = named})},
      {"gpu-not-promised",
       pair({.resources = "nvidia.com/mig-3g.20gb: 1, gpushm.dev/share: 1"},
            {.name = "b",
             .pod = follows,
             .resources = "nvidia.com/mig-3g.20gb: 1, gpushm.dev/share: 1"}),
       pair({.resources = "nvidia.com/mig-0-0: 1, gpushm.dev/share: 1"},
            {.name = "b",
             .pod = follows,
             .resources = "nvidia.com/mig-0-0: 1, gpushm.dev/share: 1"})},
      {"gpu-not-promised",
       pair({.pod = named, .resources = pool},
            {.name = "b", .pod = named, .resources = pool},
            claim(share_only)),
       pair({.pod = named}, {.name = "b", .pod = named}, claim(both))},
      {"gpu-not-promised",
       with(
           pod({.resources = pool}),
           "    resources: {limits: {" + pool + "}}",
           "    resources: {limits: {" + pool +
               "}}\n    securityContext: &s {allowPrivilegeEscalation: false, capabilities: {drop: "
               "[ALL]}}\n  - name: second\n    resources: {limits: {" +
               pool + "}}"),
       pod({.resources = one_gpu})},
      {"node-not-promised",
       pair({.resources = one_gpu}, {.name = "b", .resources = one_gpu}),
       pair({.pod = "nodeName: n1", .resources = one_gpu},
            {.name = "b", .pod = "nodeName: n1", .resources = one_gpu})},
      {"node-not-promised",
       pair({.resources = one_gpu}, {.name = "b", .pod = zone, .resources = one_gpu}),
       pair({.pod = "nodeSelector: {kubernetes.io/hostname: n1}", .resources = one_gpu},
            {.name = "b",
             .pod = "nodeSelector: {kubernetes.io/hostname: n1}",
             .resources = one_gpu})},
      {"node-not-promised",
       pair({.resources = one_gpu},
            {.name = "b", .pod = with(follows, "{pair: a}", "{pair: z}"), .resources = one_gpu}),
       pair({.resources = one_gpu},
            {.name = "b",
             .pod = with(follows,
                         "matchLabels: {pair: a}",
                         "matchExpressions: [{key: pair, operator: In, values: [x, a]}]"),
             .resources = one_gpu})},
      {"claim-not-shared",
       pair({.pod = from}, {.name = "b", .pod = from}, of_template),
       pair({.pod = named}, {.name = "b", .pod = named}, of_template)},
  };
}
INSTANTIATE_TEST_SUITE_P(pairs, k8s_rule, ::testing::ValuesIn(pair_cases()));

TEST(k8s_lint, one_gpu_nodes_guarantee_the_same_gpu) {
  const std::string pool = "nvidia.com/gpu: 1, gpushm.dev/share: 1";
  const std::string text = pair({.pod = "nodeName: n", .resources = pool},
                                {.name = "b", .pod = "nodeName: n", .resources = pool});
  EXPECT_THAT(rules_of(linted(text)), ElementsAre("gpu-not-promised"));
  EXPECT_THAT(linted(text, {.one_gpu_nodes = true}), IsEmpty());
}

TEST(k8s_lint, system_host_paths_do_not_connect_pods) {
  const auto both = [](const std::string& source) {
    const std::string volume = "volumes: [{name: v, hostPath: " + source + "}]";
    const std::string mount = "volumeMounts: [{name: v, mountPath: /v}]";
    return linted(
        pair({.pod = volume, .container = mount, .resources = "nvidia.com/gpu: 1"},
             {.name = "b", .pod = volume, .container = mount, .resources = "nvidia.com/gpu: 1"}));
  };
  for (const char* source : {"{path: /etc/localtime}",
                             "{path: /etc/localtime, type: File}",
                             "{path: /usr/share/zoneinfo}",
                             "{path: /data/license, type: File}",
                             "{path: /var/log}"}) {
    EXPECT_THAT(both(source), IsEmpty()) << source;
  }
  EXPECT_THAT(rules_of(both("{path: /data/handles}")),
              ElementsAre("gpu-not-promised", "host-path", "node-not-promised"));
}

TEST(k8s_lint, read_only_host_path_does_not_connect_pods) {
  const auto both = [](const std::string& first, const std::string& second) {
    const std::string volume = "volumes: [{name: v, hostPath: {path: /data/models}}]";
    const auto mount = [](const std::string& more) {
      return "volumeMounts: [{name: v, mountPath: /v" + more + "}]";
    };
    return rules_of(
        linted(pair({.pod = volume, .container = mount(first), .resources = "nvidia.com/gpu: 1"},
                    {.name = "b",
                     .pod = volume,
                     .container = mount(second),
                     .resources = "nvidia.com/gpu: 1"})));
  };
  const std::string read_only = ", readOnly: true";
  EXPECT_THAT(both(read_only, read_only), ElementsAre("host-path"));
  EXPECT_THAT(both("", read_only),
              ElementsAre("gpu-not-promised", "host-path", "node-not-promised"));
}

TEST(k8s_lint, only_resources_of_one_gpu_guarantee_the_same_gpu) {
  const auto both = [](const std::string& resource) {
    const std::string requested = resource + ": 1, gpushm.dev/share: 1";
    return rules_of(linted(pair({.pod = "nodeName: n", .resources = requested},
                                {.name = "b", .pod = "nodeName: n", .resources = requested})));
  };
  for (const char* one : {"nvidia.com/gpu-0", "nvidia.com/gpu-11", "nvidia.com/mig-0-1"}) {
    EXPECT_THAT(both(one), IsEmpty()) << one;
  }
  for (const char* any : {"nvidia.com/gpu",
                          "nvidia.com/a100",
                          "nvidia.com/gpu-slice",
                          "nvidia.com/mig-1g.10gb",
                          "nvidia.com/mig-1g.10gb.shared"}) {
    EXPECT_THAT(both(any), ElementsAre("gpu-not-promised")) << any;
  }
  const std::string slices = "nvidia.com/gpu-slice: 1, gpushm.dev/share: 1";
  EXPECT_THAT(linted(pair({.pod = "nodeName: n", .resources = slices},
                          {.name = "b", .pod = "nodeName: n", .resources = slices}),
                     {.one_gpu_resources = {"nvidia.com/gpu-slice"}}),
              IsEmpty());
  // Not a GPU, and does not hide the findings for the GPUs.
  EXPECT_THAT(both("nvidia.com/hostdev"), IsEmpty());
  EXPECT_THAT(both("nvidia.com/hostdev: 1, nvidia.com/gpu"), ElementsAre("gpu-not-promised"));
}

TEST(k8s_lint, named_partner_has_most_guarantees) {
  const std::string requested = "nvidia.com/gpu: 1, gpushm.dev/share: 1";
  const std::string text =
      pod({.name = "a", .pod = "nodeName: n1", .resources = requested}) + "---\n" +
      pod({.name = "b", .pod = "nodeName: n2", .resources = requested}) + "---\n" +
      pod({.name = "c", .pod = "nodeName: n1", .resources = requested});
  std::map<std::string, std::string> why;
  for (const finding& each : linted(text)) {
    if (each.rule == "gpu-not-promised") {
      why[each.object] = each.why.substr(0, each.why.find(" can share"));
    }
  }
  EXPECT_EQ(why,
            (std::map<std::string, std::string>{{"Pod ns/b", "This and Pod ns/a (and 1 more)"},
                                                {"Pod ns/c", "This and Pod ns/a (and 1 more)"}}));
}

TEST(k8s_lint, shares_of_other_domains_do_not_connect_pods) {
  const auto both = [](const std::string& first, const std::string& second) {
    return rules_of(linted(pair({.resources = "nvidia.com/gpu: 1, " + first},
                                {.name = "b", .resources = "nvidia.com/gpu: 1, " + second})));
  };
  EXPECT_THAT(both("gpushm.dev/ipc: 1", "gpushm.dev/share: 1"),
              ElementsAre("gpu-not-promised", "node-not-promised"));
  EXPECT_THAT(both("gpushm.dev/ipc-team: 1", "gpushm.dev/share-team: 1"),
              ElementsAre("gpu-not-promised", "node-not-promised"));
  EXPECT_THAT(both("gpushm.dev/ipc-team: 1", "gpushm.dev/ipc-other: 1"), IsEmpty());
}

TEST(k8s_lint, proposes_a_resource_of_one_gpu_only_where_it_exists) {
  const auto proposed = [](const std::string& resources, const lint_options& options) {
    std::string lines;
    for (const finding& each :
         linted(pair({.pod = "nodeName: n", .resources = resources},
                     {.name = "b", .pod = "nodeName: n", .resources = resources}),
                options)) {
      EXPECT_EQ(each.rule, "gpu-not-promised");
      EXPECT_THAT(each.why, HasSubstr("one ResourceClaim in both"));
      EXPECT_THAT(each.why, HasSubstr(", in place of nvidia.com/gpu"));
      for (const std::string& one : each.write) {
        lines += one + "\n";
      }
    }
    return lines;
  };
  const std::string pool = "nvidia.com/gpu: 1, gpushm.dev/share: 1";
  EXPECT_THAT(proposed(pool, {}), HasSubstr("    claims: [{name: gpu}]\n"));
  EXPECT_THAT(proposed(pool, {}), HasSubstr("kind: ResourceClaim\n"));
  EXPECT_THAT(proposed(pool, {}), Not(HasSubstr("gpushm.dev/gpu-0")));
  EXPECT_THAT(proposed(pool, {.per_gpu_resources = true}), HasSubstr("    gpushm.dev/gpu-0: 1\n"));
  const auto used = linted(pair({.pod = "nodeName: n", .resources = pool},
                                {.name = "b",
                                 .pod = "nodeName: n",
                                 .resources = "gpushm.dev/gpu-1: 1, gpushm.dev/share: 1"}));
  ASSERT_THAT(used, SizeIs(1));
  EXPECT_THAT(used[0].write, ElementsAre("resources:", "  limits:", "    gpushm.dev/gpu-0: 1"));
}

TEST(k8s_lint, lines_of_a_claim_are_a_pod_and_a_claim) {
  const std::string pool = "nvidia.com/gpu: 1, gpushm.dev/share: 1";
  const auto findings = linted(pair({.pod = "nodeName: n", .resources = pool},
                                    {.name = "b", .pod = "nodeName: n", .resources = pool}));
  ASSERT_THAT(findings, SizeIs(1));
  std::string text = "apiVersion: v1\nkind: Pod\nspec:\n";
  bool in_pod = true;
  for (const std::string& line : findings[0].write) {
    in_pod = in_pod && line != "---";
    text += (in_pod ? "  " : "") + line + "\n";
  }
  manifests manifests;
  manifests.add(text, "file");
  EXPECT_THAT(manifests.problems(), IsEmpty());
  ASSERT_THAT(manifests.claims(), SizeIs(1));
  EXPECT_THAT(manifests.claims()[0].device_classes, ElementsAre("gpu.nvidia.com"));
  ASSERT_THAT(manifests.workloads(), SizeIs(1));
  const auto claims = manifests.workloads()[0].spec["resourceClaims"].elements();
  ASSERT_THAT(claims, SizeIs(1));
  EXPECT_EQ(claims[0]["resourceClaimName"].text(), manifests.claims()[0].name);
}

TEST(k8s_lint, pods_that_do_not_share_have_no_findings) {
  EXPECT_THAT(linted(pair({.resources = "nvidia.com/gpu: 1"},
                          {.name = "b", .resources = "nvidia.com/gpu: 1"})),
              IsEmpty());
  EXPECT_THAT(linted(pair({.resources = "gpushm.dev/share: 1"},
                          {.name = "b", .resources = "gpushm.dev/share: 1"})),
              IsEmpty());
}

TEST(k8s_lint, finding_has_location_and_lines_to_write) {
  const auto findings = linted(pod({.pod = "hostPID: true"}));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(
      findings[0],
      (finding{"file",
               8,
               3,
               "host-pid",
               "Pod ns/a",
               "Sharing GPU memory needs no host PID namespace: the driver refuses a legacy IPC "
               "handle only when the exporter's PID equals the importer's own, and descriptors "
               "contain no PID; gpushm shares descriptors, and rewrites the PID in legacy handles",
               {"hostPID: false"}}));
  const auto node =
      linted(pair({.resources = "nvidia.com/gpu-0: 1, gpushm.dev/share: 1"},
                  {.name = "b", .resources = "nvidia.com/gpu-0: 1, gpushm.dev/share: 1"}));
  ASSERT_THAT(node, SizeIs(1));
  EXPECT_EQ(node[0].object, "Pod ns/b");
  EXPECT_EQ(node[0].line, 23);
  EXPECT_THAT(node[0].write, SizeIs(7));
  EXPECT_EQ(node[0].write[5], "          pair: a");
}

TEST(k8s_lint, every_workload_kind_is_checked) {
  const std::string bad = pod({.pod = "hostPID: true"});
  const std::string spec = bad.substr(bad.find("spec:"));
  const auto indented = [&spec](const std::string& indent) {
    std::istringstream lines(spec);
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      text.append(indent).append(line).append("\n");
    }
    return text;
  };
  for (const std::string kind :
       {"Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "ReplicationController", "Job"}) {
    const auto found = linted("apiVersion: apps/v1\nkind: " + kind +
                              "\nmetadata: {name: x}\nspec:\n  template:\n" + indented("    "));
    EXPECT_THAT(rules_of(found), ElementsAre("host-pid")) << kind;
    EXPECT_EQ(found.at(0).object, kind + " x");
  }
  const auto cron = linted(
      "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: x}\nspec:\n  jobTemplate:\n    spec:\n"
      "      template:\n" +
      indented("        "));
  EXPECT_THAT(rules_of(cron), ElementsAre("host-pid"));
  const auto list = linted(
      R"({"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"hostIPC":true}}]})");
  EXPECT_THAT(rules_of(list), ElementsAre("host-ipc"));
}

TEST(k8s_lint, init_containers_are_checked_other_kinds_ignored) {
  const auto findings = linted(
      "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n"
      "  initContainers: [{name: i, securityContext: {privileged: true}}]\n");
  EXPECT_THAT(rules_of(findings), IsSupersetOf({std::string("privileged")}));
  EXPECT_EQ(findings.at(0).object, "Pod x, container i");
  EXPECT_THAT(linted("apiVersion: v1\nkind: ConfigMap\ndata: {hostPID: 'true'}\n"), IsEmpty());
}

TEST(k8s_lint, aliases_and_merge_keys_are_followed) {
  EXPECT_THAT(rules_of(linted("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"
                              "spec:\n  <<: &d {hostPID: true}\n")),
              ElementsAre("host-pid"));
}

TEST(k8s_lint, invalid_manifest_is_a_finding_with_location) {
  const auto broken = linted(pod({}) + "---\nkind: [\n");
  ASSERT_THAT(broken, SizeIs(1));
  EXPECT_EQ(broken[0].rule, "syntax");
  EXPECT_THAT(broken[0].why, testing::StartsWith("not valid YAML or JSON: "));
  EXPECT_GE(broken[0].line, 17);
  const auto other = linted("a: 1\n---\n- 1\n---\n---\nnull\n");
  ASSERT_THAT(other, SizeIs(2));
  EXPECT_EQ(other[0].why, "not a Kubernetes object: apiVersion or kind is missing");
  EXPECT_EQ(other[1].line, 3);
  EXPECT_THAT(linted(""), IsEmpty());
  EXPECT_THAT(linted("# nothing\n"), IsEmpty());
}

TEST(k8s_lint, number_of_findings_is_limited) {
  std::string text = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n";
  for (int i = 0; i < 5'000; ++i) {
    text += "  - {name: c, securityContext: {privileged: true}}\n";
  }
  EXPECT_THAT(linted(text), SizeIs(gpushm::k8s::report::max_findings));
}

// ---- the examples ----

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class k8s_examples : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(examples_)) {
      GTEST_SKIP() << "the sources do not exist: " << examples_;
    }
  }
  fs::path examples_ = fs::path(GPUSHM_SOURCE_DIR) / "deploy/examples";
};

TEST_F(k8s_examples, project_examples_pass) {
  std::size_t checked = 0;
  lint_options options;
  options.one_gpu_resources = {"nvidia.com/gpu-slice"};  // time-slicing/agent/config.yaml
  for (const auto& each : fs::recursive_directory_iterator(examples_)) {
    const fs::path& path = each.path();
    if (path.extension() != ".yaml" || path.parent_path().filename() == "before" ||
        path.parent_path().filename() == "agent" || path.filename() == "namespace.yaml") {
      continue;
    }
    manifests manifests;
    manifests.add(text_of(path), path.string());
    EXPECT_THAT(manifests.workloads(), Not(IsEmpty())) << path;
    for (const finding& finding : gpushm::k8s::lint(manifests, options)) {
      ADD_FAILURE() << finding.file << ":" << finding.line << ": " << finding.object << ": "
                    << finding.why << " [" << finding.rule << "]";
    }
    ++checked;
  }
  EXPECT_GE(checked, 7U);
}

TEST_F(k8s_examples, published_pair_is_reported) {
  const fs::path path = examples_ / "before/pods.yaml";
  if (!fs::exists(path)) {
    GTEST_SKIP() << path << " does not exist";
  }
  manifests manifests;
  manifests.add(text_of(path), path.string());
  const auto findings = gpushm::k8s::lint(manifests);
  EXPECT_THAT(rules_of(findings),
              IsSupersetOf({"host-pid",
                            "host-ipc",
                            "privileged",
                            "capability",
                            "host-path",
                            "gpu-not-promised",
                            "node-not-promised"}));
  std::istringstream text(text_of(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  for (const finding& each : findings) {
    const std::string& line = lines.at(static_cast<std::size_t>(each.line) - 1);
    if (each.rule == "host-pid") {
      EXPECT_THAT(line, HasSubstr("hostPID: true"));
    } else if (each.rule == "capability") {
      EXPECT_THAT(line, HasSubstr("IPC_LOCK"));
    }
  }
}

}  // namespace
}  // namespace gpushm_tests
