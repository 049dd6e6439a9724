// SPDX-License-Identifier: Apache-2.0
// `gpushm k8s lint` finds pods by their shape in objects of any kind, and reports objects whose
// pods it does not know.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/command/k8s_linted.hpp"

namespace gpushm_tests {
namespace {

using gpushm::k8s::finding;
using gpushm::k8s::manifests;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;

/// A pod's specification with one finding: "host-pid".
constexpr const char* bad_spec =
    "{hostPID: true, securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}},"
    " containers: [{name: main, image: x, securityContext: {allowPrivilegeEscalation: false,"
    " capabilities: {drop: [ALL]}}}]}";

struct kind_case {
  const char* name;
  const char* text;  ///< <SPEC> marks the pod
  std::vector<std::string> objects;
};
void PrintTo(const kind_case& kind_case, std::ostream* to) {
  *to << kind_case.name;
}

std::string with_spec(std::string text) {
  for (std::size_t at = text.find("<SPEC>"); at != std::string::npos; at = text.find("<SPEC>")) {
    text.replace(at, 6, bad_spec);
  }
  return text;
}

class k8s_kind : public ::testing::TestWithParam<kind_case> {};

TEST_P(k8s_kind, each_pod_template_is_checked) {
  const std::vector<finding> findings = linted(with_spec(GetParam().text));
  std::vector<std::string> objects;
  for (const finding& each : findings) {
    EXPECT_EQ(each.rule, "host-pid") << each.object << ": " << each.why;
    EXPECT_GT(each.line, 0);
    objects.push_back(each.object);
  }
  EXPECT_EQ(objects, GetParam().objects);
}

const std::vector<kind_case>& kind_cases() {
  static const std::vector<kind_case> cases{
      {"RayCluster",
       "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r, namespace: ns}\nspec:\n"
       "  headGroupSpec: {rayStartParams: {}, template: {spec: <SPEC>}}\n"
       "  workerGroupSpecs:\n  - {groupName: a, template: {spec: <SPEC>}}\n"
       "  - {groupName: b, template: {spec: <SPEC>}}\n",
       {"RayCluster ns/r, spec.headGroupSpec.template",
        "RayCluster ns/r, spec.workerGroupSpecs[0].template",
        "RayCluster ns/r, spec.workerGroupSpecs[1].template"}},
      {"RayService",
       "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: r}\nspec:\n"
       "  rayClusterConfig: {headGroupSpec: {template: {spec: <SPEC>}}}\n",
       {"RayService r, spec.rayClusterConfig.headGroupSpec.template"}},
      {"LeaderWorkerSet",
       "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\n"
       "spec:\n  leaderWorkerTemplate:\n    leaderTemplate: {spec: <SPEC>}\n"
       "    workerTemplate: {spec: <SPEC>}\n",
       {"LeaderWorkerSet l, spec.leaderWorkerTemplate.leaderTemplate",
        "LeaderWorkerSet l, spec.leaderWorkerTemplate.workerTemplate"}},
      {"MPIJob",
       "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: m}\nspec:\n"
       "  mpiReplicaSpecs:\n    Launcher: {replicas: 1, template: {spec: <SPEC>}}\n"
       "    Worker: {replicas: 2, template: {spec: <SPEC>}}\n",
       {"MPIJob m, spec.mpiReplicaSpecs.Launcher.template",
        "MPIJob m, spec.mpiReplicaSpecs.Worker.template"}},
      {"PyTorchJob",
       "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\nspec:\n"
       "  pytorchReplicaSpecs: {Master: {template: {spec: <SPEC>}}}\n",
       {"PyTorchJob p, spec.pytorchReplicaSpecs.Master.template"}},
      {"JobSet",
       "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec:\n"
       "  replicatedJobs:\n  - {name: w, template: {spec: {template: {spec: <SPEC>}}}}\n",
       {"JobSet j, spec.replicatedJobs[0].template.template"}},
      {"Rollout",
       "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: r}\nspec:\n"
       "  template: {spec: <SPEC>}\n",
       {"Rollout r, spec.template"}},
      {"KnativeService",
       "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: s}\nspec:\n"
       "  template: {spec: <SPEC>}\n",
       {"Service s, spec.template"}},
      {"VolcanoJob",
       "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\nspec:\n"
       "  tasks: [{name: t, template: {spec: <SPEC>}}]\n",
       {"Job v, spec.tasks[0].template"}},
      {"InferenceService",
       "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: i}\nspec:\n"
       "  predictor: <SPEC>\n",
       {"InferenceService i, spec.predictor"}},
      {"ScaledJob",
       "apiVersion: keda.sh/v1alpha1\nkind: ScaledJob\nmetadata: {name: k}\nspec:\n"
       "  jobTargetRef: {template: {spec: <SPEC>}}\n",
       {"ScaledJob k, spec.jobTargetRef.template"}},
      {"kind_that_nobody_has_seen",
       "apiVersion: example.com/v7\nkind: Thing\nmetadata: {name: t}\n"
       "world: [[{deep: {er: {podSpec: <SPEC>}}}]]\n",
       {"Thing t, world[0][0].deep.er.podSpec"}},
      {"list_of_the_api_server",
       "apiVersion: ray.io/v1\nkind: RayClusterList\nitems:\n- metadata: {name: r}\n  spec: "
       "{headGroupSpec: {template: {spec: <SPEC>}}}\n",
       {"RayCluster r, spec.headGroupSpec.template"}},
      {"list_of_pods",
       "apiVersion: v1\nkind: PodList\nitems:\n- {metadata: {name: p}, spec: <SPEC>}\n",
       {"Pod p"}},
      {"PodTemplate",
       "apiVersion: v1\nkind: PodTemplate\nmetadata: {name: p}\ntemplate: {spec: <SPEC>}\n",
       {"PodTemplate p"}}};
  return cases;
}
INSTANTIATE_TEST_SUITE_P(kinds, k8s_kind, ::testing::ValuesIn(kind_cases()), [](const auto& each) {
  return std::string(each.param.name);
});

TEST(k8s_kinds, published_case_is_reported_completely) {
  const auto findings = linted(R"(apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: rl}
spec:
  headGroupSpec:
    template:
      spec:
        hostIPC: true
        containers:
        - name: head
          image: example/ray:1
          securityContext: {privileged: true}
          resources: {limits: {nvidia.com/gpu: "1"}}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: lws}
spec:
  leaderWorkerTemplate:
    workerTemplate:
      spec:
        hostIPC: true
        hostPID: true
        containers:
        - {name: w, image: "example/vllm:1", resources: {limits: {nvidia.com/gpu: "1"}}}
)");
  EXPECT_THAT(rules_of(findings),
              IsSupersetOf({"host-ipc", "host-pid", "privileged", "gpu-not-promised"}));
  EXPECT_EQ(findings.at(0).object, "RayCluster rl, spec.headGroupSpec.template");
  EXPECT_EQ(findings.at(0).line, 8);
}

TEST(k8s_kinds, labels_of_a_template_guarantee_the_node) {
  const auto template_of = [](const std::string& name, const std::string& more) {
    return "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: " + name +
           "}\nspec:\n  template:\n    metadata: {labels: {pair: " + name + "}}\n    spec: {" +
           more +
           "containers: [{image: x, resources: {limits: {gpushm.dev/gpu-0: 1, "
           "gpushm.dev/ipc: 1}}}]}\n";
  };
  const std::string follows =
      "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: "
      "kubernetes.io/hostname, labelSelector: {matchLabels: {pair: a}}}]}}, ";
  const std::string first = template_of("a", "") + "---\n";
  EXPECT_THAT(rules_of(linted(first + template_of("b", ""))), Contains("node-not-promised"));
  EXPECT_THAT(rules_of(linted(first + template_of("b", follows))),
              Not(Contains("node-not-promised")));
}

/// Parts of pods, merged into the fields of an operator.
TEST(k8s_kinds, what_a_part_of_a_pod_requests_is_checked) {
  struct part_case {
    const char* text;
    std::set<std::string> rules;
  };
  const part_case cases[] = {
      {"kind: DynamoGraphDeployment\nspec: {services: {W: {resources: {limits: {gpu: '1'}}, "
       "extraPodSpec: {hostIPC: true, mainContainer: {image: x, securityContext: {privileged: "
       "true}}}}}}\n",
       {"host-ipc", "kind-not-read", "privileged"}},
      {"kind: NIMService\nspec: {image: {repository: r}, resources: {limits: {nvidia.com/gpu: 1}}, "
       "securityContext: {capabilities: {add: [SYS_PTRACE]}}}\n",
       {"capability", "kind-not-read"}},
      {"kind: Workflow\nspec: {templates: [{name: a, container: {image: x, env: [{name: "
       "NVIDIA_VISIBLE_DEVICES, value: all}]}}]}\n",
       {"kind-not-read", "visible-devices"}},
      {"kind: SparkApplication\nspec: {driver: {image: x, hostNetwork: true}, executor: {cores: "
       "1}}\n",
       {"host-network", "kind-not-read"}},
      {"kind: Engine\nspec: {worker: {hostPID: true, volumes: [{name: v, hostPath: {path: "
       "/dev/shm}}]}}\n",
       {"host-path", "host-pid", "kind-not-read"}}};
  for (const part_case& each : cases) {
    const auto found = linted(std::string("apiVersion: example.com/v1\n") + each.text);
    EXPECT_EQ(rules_of(found), each.rules) << each.text;
  }
}

TEST(k8s_kinds, kind_without_a_pod_is_reported_and_can_be_accepted) {
  const std::string text =
      "apiVersion: lmcache.ai/v1alpha1\nkind: LMCacheEngine\nmetadata: {name: e, namespace: ns}\n"
      "spec: {model: m, gpuCount: 2}\n";
  const auto findings = linted(text);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].rule, "kind-not-read");
  EXPECT_EQ(findings[0].object, "LMCacheEngine ns/e");
  EXPECT_EQ(findings[0].line, 2);
  EXPECT_EQ(findings[0].why,
            "No pod was found in this object: the pods that a controller of lmcache.ai/v1alpha1 "
            "may create from it are not checked. Check them in the cluster: kubectl get pods -o "
            "yaml | gpushm k8s lint -  (a kind that creates no pods: --ignore-kind LMCacheEngine)");
  EXPECT_THAT(linted(text, {.ignored_kinds = {"LMCacheEngine"}}), IsEmpty());
  EXPECT_THAT(linted(text, {.ignored_kinds = {"Other"}}), SizeIs(1));
}

TEST(k8s_kinds, objects_that_create_no_pods_are_not_reported) {
  for (const char* type : {"v1\nkind: Service",
                           "v1\nkind: ConfigMap",
                           "networking.k8s.io/v1\nkind: NetworkPolicy",
                           "gateway.networking.k8s.io/v1\nkind: HTTPRoute",
                           "rbac.authorization.k8s.io/v1\nkind: Role",
                           "resource.k8s.io/v1\nkind: DeviceClass",
                           "monitoring.coreos.com/v1\nkind: ServiceMonitor",
                           "cert-manager.io/v1\nkind: Certificate",
                           "kueue.x-k8s.io/v1beta1\nkind: LocalQueue"}) {
    EXPECT_THAT(
        linted(std::string("apiVersion: ") + type + "\nmetadata: {name: x}\nspec: {a: 1}\n"),
        IsEmpty())
        << type;
  }
  // Another kind of the same group creates pods.
  EXPECT_THAT(
      rules_of(linted("apiVersion: monitoring.coreos.com/v1\nkind: Prometheus\nspec: {}\n")),
      ElementsAre("kind-not-read"));
}

TEST(k8s_kinds, patterns_and_schemas_are_not_pods) {
  for (const char* type : {"kyverno.io/v1\nkind: ClusterPolicy",
                           "policies.kyverno.io/v1\nkind: ValidatingPolicy",
                           "templates.gatekeeper.sh/v1\nkind: ConstraintTemplate",
                           "apiextensions.k8s.io/v1\nkind: CustomResourceDefinition",
                           "policy/v1beta1\nkind: PodSecurityPolicy"}) {
    EXPECT_THAT(linted(with_spec(std::string("apiVersion: ") + type +
                                 "\nspec: {hostPID: true, pattern: {spec: <SPEC>}}\n")),
                IsEmpty())
        << type;
  }
  // A status and annotations are no requests.
  EXPECT_THAT(rules_of(linted(with_spec("apiVersion: example.com/v1\nkind: Thing\nstatus: {spec: "
                                        "<SPEC>}\n"))),
              ElementsAre("kind-not-read"));
}

TEST(k8s_kinds, workloads_of_templates_are_counted) {
  manifests manifests;
  manifests.add(with_spec("apiVersion: ray.io/v1\nkind: RayCluster\nspec: {head: {template: {spec: "
                          "<SPEC>}}, workers: [{template: {spec: <SPEC>}}]}\n"),
                "file");
  EXPECT_EQ(manifests.objects(), 1U);
  EXPECT_THAT(manifests.workloads(), SizeIs(2));
  EXPECT_THAT(manifests.unread(), IsEmpty());
}

}  // namespace
}  // namespace gpushm_tests
