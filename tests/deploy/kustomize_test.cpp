// SPDX-License-Identifier: Apache-2.0
// The kustomizations: each renders, matches the API's schema, and has exactly the objects, mounts
// and permissions that this file lists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "tests/deploy/pod_security.hpp"
#include "tests/deploy/rendered.hpp"
#include "tests/deploy/schema.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
using strings = std::vector<std::string>;
using permissions = std::map<std::string, std::set<std::string>>;

/// All permissions that the agent needs at an API server (src/kubernetes/dra), as "group/resource"
/// and verbs. docs/kubernetes.md lists their purposes; keep both up to date.
const permissions needed{
    {"resource.k8s.io/resourceclaims", {"get"}},
    {"resource.k8s.io/resourceslices", {"get", "list", "watch", "create", "update", "delete"}},
    {"/nodes", {"get"}},
};

struct expected {
  bool gpus = false;
  bool dra = false;
  std::string class_version;  ///< of resource.k8s.io, with DRA
  bool host_pid = false;
  bool per_gpu = false;
  bool driver_container = false;  ///< of NVIDIA's GPU operator
};

/// The kustomizations for deployment; they are built on the others, `base` and `with-dra`.
const std::map<std::string, expected> overlays{
    {"deploy/kustomize/overlays/full", {true, true, "v1", false, false}},
    {"deploy/kustomize/overlays/full-per-gpu", {true, true, "v1", false, true}},
    {"deploy/kustomize/overlays/gpu-operator", {true, true, "v1", false, false, true}},
    {"deploy/kustomize/overlays/name-peers", {false, true, "v1", true, false}},
    {"deploy/kustomize/overlays/no-dra", {true, false, "", false, false}},
    {"deploy/kustomize/overlays/no-dra-per-gpu", {true, false, "", false, true}},
    {"deploy/kustomize/overlays/share-only", {false, true, "v1", false, false}},
    {"deploy/kustomize/overlays/share-only-no-dra", {false, false, "", false, false}},
    {"deploy/kustomize/overlays/share-only-v1beta1", {false, true, "v1beta1", false, false}},
    {"deploy/examples/mig/agent", {true, false, "", false, false}},
    {"deploy/examples/time-slicing/agent", {true, false, "", false, false}},
};
const strings parts{"deploy/kustomize/base", "deploy/kustomize/with-dra"};

strings all_directories() {
  strings strings = parts;
  for (const auto& [directory, overlay] : overlays) {
    strings.push_back(directory);
  }
  std::sort(strings.begin(), strings.end());
  return strings;
}

class source_tree : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
  }
};

class kustomization : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    if (const auto reason = why_no_kubectl()) {
      GTEST_SKIP() << *reason;
    }
    objects_ = rendered(GetParam());
  }
  [[nodiscard]] const expected& wanted() const { return overlays.at(GetParam()); }
  [[nodiscard]] const manifest& daemon_set(std::string_view name = "gpushmd") const {
    return object(objects_, "DaemonSet", name);
  }
  [[nodiscard]] const gpushm::yaml::node& pod(std::string_view name = "gpushmd") const {
    return *pod_spec(daemon_set(name));
  }
  [[nodiscard]] const gpushm::yaml::node& container() const {
    return *elements(find(pod(), {"containers"})).at(0);
  }
  [[nodiscard]] const gpushm::yaml::node& context() const {
    return *find(container(), {"securityContext"});
  }
  /// Names and values; "" for a value from a field.
  [[nodiscard]] std::map<std::string, std::string> environment() const {
    std::map<std::string, std::string> problems;
    for (const gpushm::yaml::node* each : elements(find(container(), {"env"}))) {
      EXPECT_TRUE(problems.emplace(text_at(*each, {"name"}), text_at(*each, {"value"})).second);
    }
    return problems;
  }
  void match_schema() const;
  void have_expected_namespaces() const;

  std::vector<manifest> objects_;
};
class part : public kustomization {};
class overlay : public kustomization {
 protected:
  void has_exactly_expected_objects() const;
  void sets_expected_variables() const;
  void has_token_only_with_dra() const;
  void is_privileged_only_for_nvml() const;
  void mounts_only_needed_host_paths() const;
  void updates_one_node_at_a_time() const;
  void probes_use_listening_port() const;
  void uses_image_of_make_image() const;
  void has_exactly_needed_permissions() const;
  void policy_binds_slices_to_token_node() const;
  void uses_only_existing_settings() const;
  void has_no_flag_that_overrides_variables() const;
  void is_scheduled_on_gpu_or_labelled_nodes() const;
  void leaves_nodes_whose_gpus_are_needed() const;
  void broker_is_unprivileged() const;
  void next_broker_takes_over() const;
  void old_broker_stays_until_then() const;
  void probes_cost_little() const;
  void admits_only_scrapers() const;
};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

strings overlay_names() {
  strings names;
  for (const auto& [directory, overlay] : overlays) {
    names.push_back(directory);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(of, part, testing::ValuesIn(parts), test_name);
INSTANTIATE_TEST_SUITE_P(of, overlay, testing::ValuesIn(overlay_names()), test_name);

void kustomization::match_schema() const {
  const schema known(source_file("tests/deploy/schemas/kubernetes.json"));
  ASSERT_FALSE(objects_.empty());
  for (const manifest& each : objects_) {
    EXPECT_THAT(known.check(each), IsEmpty()) << each.kind << ' ' << each.name;
  }
}

void kustomization::have_expected_namespaces() const {
  const std::set<std::string> namespaced{
      "ConfigMap", "DaemonSet", "NetworkPolicy", "ServiceAccount"};
  for (const manifest& each : objects_) {
    EXPECT_EQ(text_at(each.root(), {"metadata", "namespace"}),
              namespaced.count(each.kind) == 1 ? "gpushm-system" : "")
        << each.kind << ' ' << each.name;
  }
}

void overlay::has_exactly_expected_objects() const {
  strings kinds{"Namespace gpushm-system",
                "ServiceAccount gpushmd",
                "ConfigMap gpushmd",
                "DaemonSet gpushmd",
                "NetworkPolicy gpushmd",
                "NetworkPolicy gpushm-brokerd",
                "ServiceAccount gpushm-brokerd",
                "DaemonSet gpushm-brokerd"};
  if (wanted().dra) {
    kinds.insert(kinds.end(),
                 {"ClusterRole gpushm.dev:gpushmd",
                  "ClusterRoleBinding gpushm.dev:gpushmd",
                  "ValidatingAdmissionPolicy resourceslices.gpushm.dev",
                  "ValidatingAdmissionPolicyBinding resourceslices.gpushm.dev",
                  "DeviceClass share.gpushm.dev",
                  "DeviceClass ipc.gpushm.dev"});
  }
  strings present;
  for (const manifest& each : objects_) {
    present.push_back(each.kind);
    present.back().append(" ").append(each.name);
  }
  EXPECT_THAT(present, UnorderedElementsAreArray(kinds));
  if (wanted().dra) {
    for (const char* const name : {"share.gpushm.dev", "ipc.gpushm.dev"}) {
      const manifest& device_class = object(objects_, "DeviceClass", name);
      EXPECT_EQ(device_class.version, "resource.k8s.io/" + wanted().class_version);
      const auto configs = elements(find(device_class.root(), {"spec", "config"}));
      const bool ipc = std::string(name) == "ipc.gpushm.dev";
      ASSERT_EQ(configs.size(), ipc ? 1U : 0U);
      if (ipc) {
        EXPECT_EQ(text_at(*configs[0], {"opaque", "driver"}), "gpushm.dev");
        EXPECT_EQ(text_at(*configs[0], {"opaque", "parameters", "ipc"}), "true");
      }
    }
  }
}

void overlay::sets_expected_variables() const {
  std::map<std::string, std::string> variables{{"NODE_NAME", ""},
                                               {"GPUSHMD_DRA", wanted().dra ? "on" : "off"},
                                               {"GPUSHMD_GPUS", wanted().gpus ? "on" : "off"}};
  if (wanted().gpus) {
    // Otherwise a GPU would be in two resources, and two pods that request one each could get the
    // same GPU.
    if (wanted().per_gpu) {
      variables["GPUSHMD_PER_GPU_RESOURCES"] = "on";
    }
    if (wanted().driver_container) {
      variables["GPUSHMD_DRIVER_ROOT"] = "/run/nvidia/driver";
    } else {
      variables["LD_LIBRARY_PATH"] =
          "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:/usr/lib";
    }
  }
  EXPECT_EQ(environment(), variables);
  const auto first = elements(find(container(), {"env"}));
  const auto node_name =
      std::find_if(first.begin(), first.end(), [](const gpushm::yaml::node* each) {
        return text_at(*each, {"name"}) == "NODE_NAME";
      });
  ASSERT_NE(node_name, first.end());
  EXPECT_EQ(text_at(**node_name, {"valueFrom", "fieldRef", "fieldPath"}), "spec.nodeName");
}

void overlay::has_token_only_with_dra() const {
  const std::string wanted_text = wanted().dra ? "true" : "false";
  EXPECT_EQ(text_at(pod(), {"automountServiceAccountToken"}), wanted_text);
  EXPECT_EQ(text_at(pod("gpushm-brokerd"), {"automountServiceAccountToken"}), "false");
  for (const char* const account : {"gpushmd", "gpushm-brokerd"}) {
    EXPECT_EQ(text_at(object(objects_, "ServiceAccount", account).root(),
                      {"automountServiceAccountToken"}),
              "false");
  }
}

void overlay::is_privileged_only_for_nvml() const {
  EXPECT_EQ(text_at(context(), {"privileged"}), wanted().gpus ? "true" : "false");
  EXPECT_EQ(text_at(context(), {"readOnlyRootFilesystem"}), "true");
  EXPECT_EQ(text_at(pod(), {"hostPID"}), "");
  EXPECT_EQ(text_at(pod(), {"hostIPC"}), "");
  EXPECT_EQ(text_at(pod(), {"hostNetwork"}), "");
  if (wanted().gpus) {
    return;
  }
  EXPECT_THAT(texts(find(context(), {"capabilities", "drop"})), ElementsAre("ALL"));
  EXPECT_EQ(text_at(context(), {"allowPrivilegeEscalation"}), "false");
  // The remaining violations of `restricted`: root, which owns the directories, and the
  // directories.
  std::multiset<std::string> left;
  for (const std::string& each : not_restricted(daemon_set())) {
    left.insert(each.substr(each.find(": ") + 2));
  }
  std::multiset<std::string> expected_left{"runAsUser 0", "runAsNonRoot is not true"};
  for (int i = 0; i < (wanted().dra ? 5 : 4); ++i) {
    expected_left.insert("volume of type hostPath");
  }
  EXPECT_EQ(left, expected_left);
}

void overlay::mounts_only_needed_host_paths() const {
  std::map<std::string, std::string> paths{
      {"/run/gpushm", "/run/gpushm ro"},
      {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins rw"},
      {"/var/lib/kubelet/plugins/gpushm.dev", "/var/lib/kubelet/plugins/gpushm.dev rw"},
      {"/var/run/cdi", "/var/run/cdi rw"}};
  if (wanted().dra) {
    paths["/var/lib/kubelet/plugins_registry"] = "/var/lib/kubelet/plugins_registry rw";
  }
  if (wanted().gpus) {
    paths["/dev"] = "/dev rw";
    if (wanted().driver_container) {
      paths["/run/nvidia/driver"] = "/run/nvidia/driver ro";
    } else {
      paths["/usr"] = "/usr ro";
    }
  }
  std::map<std::string, std::string> mounts;
  for (const gpushm::yaml::node* each : elements(find(container(), {"volumeMounts"}))) {
    mounts[text_at(*each, {"name"})] =
        text_at(*each, {"mountPath"}) + (text_at(*each, {"readOnly"}) == "true" ? " ro" : " rw");
    // A driver container mounts its root when it starts.
    const bool is_driver = text_at(*each, {"name"}) == "driver";
    EXPECT_EQ(text_at(*each, {"mountPropagation"}), is_driver ? "HostToContainer" : "");
  }
  std::map<std::string, std::string> problems;
  for (const gpushm::yaml::node* each : elements(find(pod(), {"volumes"}))) {
    if (find(*each, {"hostPath"}) != nullptr) {
      problems[text_at(*each, {"hostPath", "path"})] = mounts[text_at(*each, {"name"})];
    }
  }
  EXPECT_EQ(problems, paths);
}

void overlay::updates_one_node_at_a_time() const {
  const gpushm::yaml::node& update = *find(daemon_set().root(), {"spec", "updateStrategy"});
  EXPECT_EQ(text_at(update, {"type"}), "RollingUpdate");
  EXPECT_EQ(text_at(update, {"rollingUpdate", "maxUnavailable"}), "1");
  EXPECT_EQ(text_at(update, {"rollingUpdate", "maxSurge"}), "0");
  EXPECT_EQ(text_at(pod(), {"priorityClassName"}), "system-node-critical");
}

void overlay::probes_use_listening_port() const {
  const auto ports = elements(find(container(), {"ports"}));
  ASSERT_EQ(ports.size(), 1U);
  EXPECT_EQ(text_at(*ports[0], {"containerPort"}), "9410");
  const std::map<std::string, std::string> probes{
      {"startupProbe", "/healthz"}, {"livenessProbe", "/healthz"}, {"readinessProbe", "/readyz"}};
  for (const auto& [probe, path] : probes) {
    EXPECT_EQ(text_at(container(), {probe, "httpGet", "path"}), path);
    EXPECT_EQ(text_at(container(), {probe, "httpGet", "port"}), text_at(*ports[0], {"name"}));
  }
  const gpushm::yaml::node& annotations =
      *find(daemon_set().root(), {"spec", "template", "metadata", "annotations"});
  EXPECT_EQ(text_at(annotations, {"prometheus.io/port"}), "9410");
  EXPECT_EQ(text_at(annotations, {"prometheus.io/path"}), "/metrics");
}

void overlay::uses_image_of_make_image() const {
  const std::string version = source_file("CMakeLists.txt");
  std::smatch problems;
  ASSERT_TRUE(std::regex_search(version, problems, std::regex(R"(VERSION (\d+\.\d+\.\d+) LANG)")));
  for (const char* const name : {"gpushmd", "gpushm-brokerd"}) {
    for (const char* const list : {"initContainers", "containers"}) {
      for (const gpushm::yaml::node* each : elements(find(pod(name), {list}))) {
        EXPECT_EQ(text_at(*each, {"image"}), "localhost/gpushm:" + problems[1].str());
      }
    }
  }
}

void overlay::has_exactly_needed_permissions() const {
  permissions granted;
  for (const manifest& each : objects_) {
    if (each.kind != "ClusterRole") {
      continue;
    }
    for (const gpushm::yaml::node* rule : elements(find(each.root(), {"rules"}))) {
      EXPECT_THAT(keys_of(rule), UnorderedElementsAre("apiGroups", "resources", "verbs"));
      for (const std::string& group : texts(find(*rule, {"apiGroups"}))) {
        for (const std::string& resource : texts(find(*rule, {"resources"}))) {
          for (const std::string& verb : texts(find(*rule, {"verbs"}))) {
            granted[group + '/' + resource].insert(verb);
          }
        }
      }
    }
  }
  EXPECT_EQ(granted, wanted().dra ? needed : permissions{});
}

void overlay::policy_binds_slices_to_token_node() const {
  if (!wanted().dra) {
    return;  // without a token
  }
  const gpushm::yaml::node& binding =
      only_object(objects_, "ValidatingAdmissionPolicyBinding").root();
  const manifest& policy = only_object(objects_, "ValidatingAdmissionPolicy");
  EXPECT_EQ(text_at(binding, {"spec", "policyName"}), policy.name);
  EXPECT_THAT(texts(find(binding, {"spec", "validationActions"})), ElementsAre("Deny"));
  EXPECT_EQ(text_at(policy.root(), {"spec", "failurePolicy"}), "Fail");
  const auto rules = elements(find(policy.root(), {"spec", "matchConstraints", "resourceRules"}));
  ASSERT_EQ(rules.size(), 1U);
  EXPECT_THAT(texts(find(*rules[0], {"operations"})),
              UnorderedElementsAre("CREATE", "UPDATE", "DELETE"));
  EXPECT_THAT(texts(find(*rules[0], {"resources"})), ElementsAre("resourceslices"));
  // The policy applies to the pod's account.
  const auto conditions = elements(find(policy.root(), {"spec", "matchConditions"}));
  ASSERT_EQ(conditions.size(), 1U);
  std::string account = "system:serviceaccount:gpushm-system:";
  account += text_at(pod(), {"serviceAccountName"});
  EXPECT_EQ(text_at(*conditions[0], {"expression"}),
            "request.userInfo.username == \"" + account + '"');
}

struct documented {
  std::set<std::string> flags;      ///< "--listen"
  std::set<std::string> variables;  ///< "GPUSHMD_LISTEN"
};

/// The tables of docs/kubernetes.md, "Settings".
documented documented_settings(const std::string& title = "## Settings") {
  const std::string text = section(source_file("docs/kubernetes.md"), title);
  documented problems;
  const std::regex row(R"(\| `(--[a-z-]+)[^`]*` \| `([A-Z_]+)` \|)");
  for (std::sregex_iterator at(text.begin(), text.end(), row); at != std::sregex_iterator(); ++at) {
    problems.flags.insert((*at)[1]);
    problems.variables.insert((*at)[2]);
  }
  return problems;
}

std::set<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> problems;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern); at != std::sregex_iterator();
       ++at) {
    problems.insert((*at)[1]);
  }
  return problems;
}

void overlay::uses_only_existing_settings() const {
  const documented settings = documented_settings();
  ASSERT_GT(settings.flags.size(), 25U);
  for (const std::string& argument : texts(find(container(), {"args"}))) {
    EXPECT_EQ(settings.flags.count(argument.substr(0, argument.find('='))), 1U) << argument;
  }
  for (const auto& [variable, value] : environment()) {
    EXPECT_TRUE(settings.variables.count(variable) == 1 || variable == "LD_LIBRARY_PATH")
        << variable;
  }
}

// A flag has precedence over its variable, and a patch replaces the whole list of arguments.
void overlay::has_no_flag_that_overrides_variables() const {
  EXPECT_THAT(texts(find(container(), {"args"})), ElementsAre("--config=/etc/gpushm/config.yaml"));
}

/// True if one of the pod's terms matches a node with these labels.
bool matches_node(const gpushm::yaml::node& pod, const std::map<std::string, std::string>& labels) {
  const auto matches = [&labels](const gpushm::yaml::node& expression) {
    const auto values = texts(find(expression, {"values"}));
    const auto label = labels.find(text_at(expression, {"key"}));
    const bool among = label != labels.end() &&
                       std::find(values.begin(), values.end(), label->second) != values.end();
    const std::string what = text_at(expression, {"operator"});
    EXPECT_TRUE(what == "In" || what == "NotIn") << what;
    return among == (what == "In");
  };
  const auto terms = elements(find(pod,
                                   {"affinity",
                                    "nodeAffinity",
                                    "requiredDuringSchedulingIgnoredDuringExecution",
                                    "nodeSelectorTerms"}));
  return std::any_of(terms.begin(), terms.end(), [&](const gpushm::yaml::node* term) {
    const auto all = elements(find(*term, {"matchExpressions"}));
    return std::all_of(
        all.begin(), all.end(), [&](const gpushm::yaml::node* each) { return matches(*each); });
  });
}

void overlay::is_scheduled_on_gpu_or_labelled_nodes() const {
  for (const char* const name : {"gpushmd", "gpushm-brokerd"}) {
    const gpushm::yaml::node& spec = pod(name);
    EXPECT_FALSE(matches_node(spec, {}));
    EXPECT_FALSE(matches_node(spec, {{"node-role.kubernetes.io/control-plane", ""}}));
    EXPECT_TRUE(matches_node(spec, {{"gpushm.dev/agent", "on"}}));
    for (const char* label : {"nvidia.com/gpu.present",
                              "feature.node.kubernetes.io/pci-10de.present",
                              "feature.node.kubernetes.io/pci-0302_10de.present",
                              "feature.node.kubernetes.io/pci-0300_10de.present"}) {
      EXPECT_TRUE(matches_node(spec, {{label, "true"}})) << label;
      EXPECT_FALSE(matches_node(spec, {{label, "false"}})) << label;
      EXPECT_FALSE(matches_node(spec, {{label, "true"}, {"gpushm.dev/agent", "off"}})) << label;
    }
  }
}

/// What k8s-driver-manager and mig-manager of NVIDIA's GPU operator do to the labels of a node.
void overlay::leaves_nodes_whose_gpus_are_needed() const {
  const std::string client = "nvidia.com/gpu.deploy.client";
  // All terms match.
  const std::map<std::string, std::string> node{
      {"gpushm.dev/agent", "on"},
      {"nvidia.com/gpu.present", "true"},
      {"feature.node.kubernetes.io/pci-10de.present", "true"},
      {"feature.node.kubernetes.io/pci-0302_10de.present", "true"},
      {"feature.node.kubernetes.io/pci-0300_10de.present", "true"},
      {client, "true"},
      {"nvidia.com/gpu.deploy.device-plugin", "true"}};
  for (const std::string name : {"gpushmd", "gpushm-brokerd"}) {
    const gpushm::yaml::node& spec = pod(name);
    // The operator waits for the end of pods with this selector; releases before 26.7 do not set
    // it.
    const std::string selected = text_at(spec, {"nodeSelector", client});
    EXPECT_EQ(selected, wanted().driver_container ? "true" : "");
    const auto scheduled = [&](const std::map<std::string, std::string>& labels) {
      return matches_node(spec, labels) && (selected.empty() || labels.at(client) == selected);
    };
    EXPECT_TRUE(scheduled(node));
    // An agent without GPUs has nothing of the driver open, and lets pods with claims end.
    const bool stays = name == "gpushmd" && !wanted().gpus;
    for (const std::string value : {"paused-for-driver-upgrade", "paused-for-mig-change"}) {
      for (const std::string label : {client.c_str(), "nvidia.com/gpu.deploy.device-plugin"}) {
        std::map<std::string, std::string> paused = node;
        paused[label] = value;
        if (label == client || selected.empty()) {
          EXPECT_EQ(scheduled(paused), stays) << name << ' ' << label;
        }
      }
    }
  }
}

void overlay::broker_is_unprivileged() const {
  const gpushm::yaml::node& spec = pod("gpushm-brokerd");
  const gpushm::yaml::node& broker = *elements(find(spec, {"containers"})).at(0);
  const gpushm::yaml::node& limits = *find(broker, {"securityContext"});
  const std::string uid = text_at(limits, {"runAsUser"});
  EXPECT_EQ(text_at(limits, {"runAsNonRoot"}), "true");
  EXPECT_EQ(text_at(limits, {"runAsGroup"}), uid);
  EXPECT_EQ(text_at(limits, {"privileged"}), "false");
  EXPECT_EQ(text_at(limits, {"allowPrivilegeEscalation"}), "false");
  EXPECT_THAT(texts(find(limits, {"capabilities", "drop"})), ElementsAre("ALL"));
  EXPECT_EQ(find(limits, {"capabilities", "add"}), nullptr);
  // The only one that runs as root, until the directory exists.
  const auto first = elements(find(spec, {"initContainers"}));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_THAT(texts(find(*first[0], {"command"})),
              ElementsAre("/opt/gpushm/bin/gpushm-brokerd", "prepare", "--uid=" + uid));
  EXPECT_THAT(texts(find(*first[0], {"securityContext", "capabilities", "add"})),
              ElementsAre("CHOWN"));
  strings volumes;
  for (const gpushm::yaml::node* each : elements(find(spec, {"volumes"}))) {
    volumes.push_back(text_at(*each, {"hostPath", "path"}));
  }
  EXPECT_THAT(volumes, ElementsAre("/run/gpushm", ""));
  EXPECT_EQ(text_at(spec, {"hostPID"}), wanted().host_pid ? "true" : "");
  EXPECT_EQ(text_at(spec, {"hostNetwork"}), "");
  // The agent reaches the private socket by its group.
  EXPECT_THAT(texts(find(pod(), {"securityContext", "supplementalGroups"})), ElementsAre(uid));
}

void overlay::next_broker_takes_over() const {
  const gpushm::yaml::node& update =
      *find(daemon_set("gpushm-brokerd").root(), {"spec", "updateStrategy"});
  EXPECT_EQ(text_at(update, {"rollingUpdate", "maxUnavailable"}), "0");
  EXPECT_EQ(text_at(update, {"rollingUpdate", "maxSurge"}), "1");
  const gpushm::yaml::node& broker = *elements(find(pod("gpushm-brokerd"), {"containers"})).at(0);
  const auto arguments = texts(find(broker, {"args"}));
  EXPECT_THAT(arguments, ::testing::IsSupersetOf({"--takeover", "--stay"}));
  for (const char* const probe : {"startupProbe", "readinessProbe"}) {
    EXPECT_THAT(texts(find(broker, {probe, "exec", "command"})),
                ElementsAre("/opt/gpushm/bin/gpushm-brokerd", "check"));
  }
  // It would kill the keeper, too.
  EXPECT_EQ(find(broker, {"livenessProbe"}), nullptr);
  // Without a predecessor, the default domain does not wait for the agent.
  std::map<std::string, std::string> variables;
  for (const gpushm::yaml::node* each : elements(find(broker, {"env"}))) {
    variables.emplace(text_at(*each, {"name"}), text_at(*each, {"value"}));
  }
  EXPECT_EQ(variables["GPUSHM_BROKERD_DOMAINS"], "default");
}

/// At these keys; 0 if there is none.
int number_at(const gpushm::yaml::node& node, std::initializer_list<std::string_view> keys) {
  const std::string text = text_at(node, keys);
  return text.empty() ? 0 : std::stoi(text);
}

/// The argument after this one, in seconds; -1 if there is none.
int seconds_after(const strings& arguments, const std::string& option) {
  const auto problems = std::find(arguments.begin(), arguments.end(), option);
  return problems == arguments.end() || problems + 1 == arguments.end() ? -1
                                                                        : std::stoi(problems[1]);
}

/// The DaemonSet controller deletes an old pod that is not ready, whatever the new one does. So the
/// old one must be ready throughout a takeover that fails, and serve for a while after its
/// deletion.
void overlay::old_broker_stays_until_then() const {
  const gpushm::yaml::node& spec = pod("gpushm-brokerd");
  const gpushm::yaml::node& broker = *elements(find(spec, {"containers"})).at(0);
  const auto arguments = texts(find(broker, {"args"}));
  const int takeover = seconds_after(arguments, "--takeover-timeout");
  const int stop = seconds_after(arguments, "--stop-timeout");
  ASSERT_GT(stop, 0);
  ASSERT_GT(takeover, 2 * stop) << "it includes the end of the old broker";
  const int period = number_at(broker, {"readinessProbe", "periodSeconds"});
  const int until_unready = period * number_at(broker, {"readinessProbe", "failureThreshold"});
  EXPECT_GT(until_unready, 2 * (takeover + stop));
  // The keeper refuses the next takeover for ten times as long (--takeover-pause), so the old
  // broker is probed at least once between two of them.
  EXPECT_GT(10 * takeover, period);
  const int startup = number_at(broker, {"startupProbe", "periodSeconds"}) *
                      number_at(broker, {"startupProbe", "failureThreshold"});
  EXPECT_GT(startup, 2 * (takeover + stop)) << "the keeper ends a takeover that fails";
  const int pause = number_at(broker, {"lifecycle", "preStop", "sleep", "seconds"});
  EXPECT_GT(pause, takeover + stop);
  EXPECT_GE(number_at(spec, {"terminationGracePeriodSeconds"}), pause + takeover + stop);
}

/// Starting a program in a container costs 29 ms of CPU time in containerd, runc and the program
/// (measured with containerd 2.4 and runc 1.1.5), some hundred times what the idle broker uses in a
/// second.
void overlay::probes_cost_little() const {
  constexpr double exec_ms = 29;
  constexpr double most_ms_per_second = 0.6;
  constexpr int default_period = 10;
  for (const char* const name : {"gpushmd", "gpushm-brokerd"}) {
    double sum = 0;
    for (const gpushm::yaml::node* each : elements(find(pod(name), {"containers"}))) {
      for (const char* const probe : {"readinessProbe", "livenessProbe"}) {
        if (find(*each, {probe, "exec"}) != nullptr) {
          const int period = number_at(*each, {probe, "periodSeconds"});
          sum += exec_ms / (period == 0 ? default_period : period);
        }
      }
    }
    EXPECT_LE(sum, most_ms_per_second) << name;
  }
}

void overlay::admits_only_scrapers() const {
  const auto labels_of = [](const gpushm::yaml::node& node,
                            std::initializer_list<std::string_view> keys) {
    std::map<std::string, std::string> problems;
    const gpushm::yaml::node* const labels = find(node, keys);
    for (const std::string& key : keys_of(labels)) {
      problems[key] = text_at(*labels, {key});
    }
    return problems;
  };
  for (const char* const name : {"gpushmd", "gpushm-brokerd"}) {
    const gpushm::yaml::node& policy = object(objects_, "NetworkPolicy", name).root();
    EXPECT_EQ(labels_of(policy, {"spec", "podSelector", "matchLabels"}),
              labels_of(daemon_set(name).root(), {"spec", "selector", "matchLabels"}));
  }
  const gpushm::yaml::node& broker = object(objects_, "NetworkPolicy", "gpushm-brokerd").root();
  EXPECT_THAT(texts(find(broker, {"spec", "policyTypes"})),
              UnorderedElementsAre("Ingress", "Egress"));
  EXPECT_EQ(find(broker, {"spec", "ingress"}), nullptr);
  EXPECT_EQ(find(broker, {"spec", "egress"}), nullptr);
  const gpushm::yaml::node& agent = object(objects_, "NetworkPolicy", "gpushmd").root();
  EXPECT_THAT(texts(find(agent, {"spec", "policyTypes"})), ElementsAre("Ingress"));
  const auto rules = elements(find(agent, {"spec", "ingress"}));
  ASSERT_EQ(rules.size(), 1U);
  const auto from = elements(find(*rules[0], {"from"}));
  const auto to = elements(find(*rules[0], {"ports"}));
  ASSERT_EQ(from.size(), 1U);
  ASSERT_EQ(to.size(), 1U);
  EXPECT_THAT(keys_of(from[0]), ElementsAre("namespaceSelector"));
  EXPECT_EQ(text_at(*from[0], {"namespaceSelector", "matchLabels", "gpushm.dev/metrics"}),
            "allowed");
  const auto ports = elements(find(container(), {"ports"}));
  ASSERT_EQ(ports.size(), 1U);
  EXPECT_EQ(text_at(*to[0], {"port"}), text_at(*ports[0], {"name"}));
}

TEST_P(part, is_well_formed) {
  match_schema();
  have_expected_namespaces();
}

// One test for all, because each test would run kubectl again.
TEST_P(overlay, has_expected_content) {
  match_schema();
  have_expected_namespaces();
  has_exactly_expected_objects();
  sets_expected_variables();
  has_token_only_with_dra();
  is_privileged_only_for_nvml();
  mounts_only_needed_host_paths();
  updates_one_node_at_a_time();
  probes_use_listening_port();
  uses_image_of_make_image();
  has_exactly_needed_permissions();
  policy_binds_slices_to_token_node();
  uses_only_existing_settings();
  has_no_flag_that_overrides_variables();
  is_scheduled_on_gpu_or_labelled_nodes();
  leaves_nodes_whose_gpus_are_needed();
  broker_is_unprivileged();
  next_broker_takes_over();
  old_broker_stays_until_then();
  probes_cost_little();
  admits_only_scrapers();
}

TEST_F(source_tree, all_broker_settings_are_documented) {
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushm-brokerd"), "--help"};
  const std::string help = gpushm_testing::run_program(options).out;
  documented problems = documented_settings("## Settings of the broker");
  problems.flags.insert({"--help", "--version"});
  EXPECT_EQ(all_matches(help, std::regex("(?:^|[\\s,])(--[a-z][a-z-]+)")), problems.flags);
  EXPECT_EQ(all_matches(help, std::regex(R"(\(Env:([A-Z_]+)\))")), problems.variables);
}

TEST_F(source_tree, all_agent_settings_are_documented) {
  const auto program = gpushm_testing::find_own_program("gpushmd");
  if (!program) {
    GTEST_SKIP() << "this build has no gpushmd";
  }
  gpushm_testing::spawn_options options;
  options.argv = {*program, "--help"};
  const std::string help = gpushm_testing::run_program(options).out;
  documented problems = documented_settings();
  problems.flags.insert({"--help", "--version"});
  EXPECT_EQ(all_matches(help, std::regex("(?:^|[\\s,])(--[a-z][a-z-]+)")), problems.flags);
  EXPECT_EQ(all_matches(help, std::regex(R"(\(\$([A-Z_]+)\))")), problems.variables);
}

TEST_F(source_tree, all_permissions_are_documented) {
  const std::string text = section(source_file("docs/kubernetes.md"), "## Permissions");
  permissions problems;
  const std::regex row(R"(\| ((?:`[a-z]+`,? )+)`([a-z]+)` \|)");
  for (std::sregex_iterator at(text.begin(), text.end(), row); at != std::sregex_iterator(); ++at) {
    const std::string resource = (*at)[2];
    problems[(resource == "nodes" ? "/" : "resource.k8s.io/") + resource] =
        all_matches((*at)[1], std::regex("`([a-z]+)`"));
  }
  EXPECT_EQ(problems, needed);
}

// Some versions of kubectl read an unquoted `on` as a string, others as a boolean, so the files
// themselves must be correct. Patches may be incomplete.
TEST_F(source_tree, files_match_schema) {
  const schema known(source_file("tests/deploy/schemas/kubernetes.json"));
  std::size_t files = 0;
  const std::filesystem::path root(GPUSHM_SOURCE_DIR);
  for (const std::string& directory : kustomizations()) {
    for (const auto& entry : std::filesystem::directory_iterator(root / directory)) {
      const std::string file = entry.path().lexically_relative(root).string();
      if (entry.path().extension() != ".yaml" || entry.path().stem() == "kustomization") {
        continue;
      }
      ++files;
      for (const manifest& each : read_manifests(source_file(file), file)) {
        auto problems = known.check(each);
        problems.erase(
            std::remove_if(problems.begin(),
                           problems.end(),
                           [](const std::string& line) { return line.ends_with(" is missing"); }),
            problems.end());
        EXPECT_THAT(problems, IsEmpty());
      }
    }
  }
  EXPECT_GT(files, 10U);
}

TEST_F(source_tree, all_kustomizations_are_tested) {
  EXPECT_EQ(kustomizations(), all_directories());
}

TEST_F(source_tree, gpu_patches_of_both_overlays_are_equal) {
  EXPECT_EQ(source_file("deploy/kustomize/overlays/full/gpus.yaml"),
            source_file("deploy/kustomize/overlays/no-dra/gpus.yaml"));
  EXPECT_EQ(source_file("deploy/kustomize/overlays/full-per-gpu/per-gpu.yaml"),
            source_file("deploy/kustomize/overlays/no-dra-per-gpu/per-gpu.yaml"));
}

}  // namespace
}  // namespace gpushm_tests
