// SPDX-License-Identifier: Apache-2.0
// Every example except `before` runs in a namespace labelled `restricted`, and its two sides are
// guaranteed to get the same GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "base/process/signals.hpp"
#include "tests/deploy/manifest.hpp"
#include "tests/deploy/pod_security.hpp"
#include "tests/deploy/schema.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr const char* before_file = "deploy/examples/before/pods.yaml";
/// The namespace of all other examples.
constexpr const char* namespace_file = "deploy/examples/namespace.yaml";

/// The manifests for `kubectl apply -f`.
const std::vector<std::string> files{before_file,
                                     "deploy/examples/mig/pods.yaml",
                                     "deploy/examples/shared-claim/v1.yaml",
                                     "deploy/examples/shared-claim/v1beta1.yaml",
                                     "deploy/examples/single-pod-dra/pod.yaml",
                                     "deploy/examples/single-pod/own-broker.yaml",
                                     "deploy/examples/single-pod/pod.yaml",
                                     "deploy/examples/time-slicing/pods.yaml",
                                     "deploy/examples/two-pods/by-claim.yaml",
                                     "deploy/examples/two-pods/by-resource.yaml"};

class source_examples : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
  }
};

class example : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    objects_ = read_manifests(source_file(GetParam()), GetParam());
    if (GetParam() != before_file) {
      // `kubectl delete -f` of one example must not delete the namespace of the others.
      EXPECT_THAT(of_kind("Namespace"), IsEmpty());
      for (manifest& each : read_manifests(source_file(namespace_file), namespace_file)) {
        objects_.push_back(std::move(each));
      }
    }
  }
  [[nodiscard]] std::vector<const manifest*> of_kind(std::string_view kind) const {
    std::vector<const manifest*> examples;
    for (const manifest& each : objects_) {
      if (each.kind == kind) {
        examples.push_back(&each);
      }
    }
    return examples;
  }
  std::vector<manifest> objects_;
};
class restricted_example : public example {};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(std::string("deploy/examples/").size());
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(of, example, testing::ValuesIn(files), test_name);
INSTANTIATE_TEST_SUITE_P(of,
                         restricted_example,
                         testing::ValuesIn(files.begin() + 1, files.end()),
                         test_name);

TEST_P(example, matches_schema) {
  const schema known(source_file("tests/deploy/schemas/kubernetes.json"));
  for (const manifest& each : objects_) {
    EXPECT_THAT(known.check(each), IsEmpty()) << each.kind << ' ' << each.name;
  }
}

TEST_P(example, references_resolve) {
  const auto namespaces = of_kind("Namespace");
  ASSERT_EQ(namespaces.size(), 1U);
  std::set<std::string> claims;
  for (const manifest* each : of_kind("ResourceClaim")) {
    claims.insert(each->name);
  }
  std::set<std::string> used;
  for (const manifest& each : objects_) {
    if (each.kind != "Namespace") {
      EXPECT_EQ(text_at(each.root(), {"metadata", "namespace"}), namespaces[0]->name) << each.name;
    }
  }
  ASSERT_FALSE(of_kind("Pod").empty());
  for (const manifest* each : of_kind("Pod")) {
    const gpushm::yaml::node& spec = *pod_spec(*each);
    std::set<std::string> named;
    for (const gpushm::yaml::node* claim : elements(find(spec, {"resourceClaims"}))) {
      named.insert(text_at(*claim, {"name"}));
      used.insert(text_at(*claim, {"resourceClaimName"}));
    }
    std::set<std::string> volumes;
    for (const gpushm::yaml::node* volume : elements(find(spec, {"volumes"}))) {
      volumes.insert(text_at(*volume, {"name"}));
    }
    for (const gpushm::yaml::node* container : containers(spec)) {
      for (const gpushm::yaml::node* claim : elements(find(*container, {"resources", "claims"}))) {
        EXPECT_EQ(named.count(text_at(*claim, {"name"})), 1U) << each->place(*claim);
      }
      for (const gpushm::yaml::node* mount : elements(find(*container, {"volumeMounts"}))) {
        EXPECT_EQ(volumes.count(text_at(*mount, {"name"})), 1U) << each->place(*mount);
      }
    }
  }
  EXPECT_EQ(used, claims);
}

TEST_P(restricted_example, is_restricted) {
  EXPECT_EQ(text_at(of_kind("Namespace").at(0)->root(),
                    {"metadata", "labels", "pod-security.kubernetes.io/enforce"}),
            "restricted");
  for (const manifest* each : of_kind("Pod")) {
    EXPECT_THAT(not_restricted(*each), IsEmpty());
    EXPECT_EQ(text_at(*pod_spec(*each), {"automountServiceAccountToken"}), "false");
    for (const gpushm::yaml::node* container : containers(*pod_spec(*each))) {
      EXPECT_EQ(text_at(*container, {"image"}), "localhost/gpushm:0.2.0");
    }
  }
}

/// The requests that determine a container's GPU: resources of one GPU or instance, and claims.
std::set<std::string> gpus_of(const manifest& pod, const gpushm::yaml::node& container) {
  std::set<std::string> examples;
  for (const std::string& name : keys_of(find(container, {"resources", "limits"}))) {
    if (name.starts_with("nvidia.com/") || name.starts_with("gpushm.dev/gpu-")) {
      examples.insert(name);
    }
  }
  for (const gpushm::yaml::node* claim : elements(find(container, {"resources", "claims"}))) {
    for (const gpushm::yaml::node* of_pod : elements(find(*pod_spec(pod), {"resourceClaims"}))) {
      if (text_at(*of_pod, {"name"}) == text_at(*claim, {"name"})) {
        examples.insert(text_at(*of_pod, {"resourceClaimName"}));
      }
    }
  }
  return examples;
}

TEST_P(restricted_example, producer_and_consumer_get_same_gpu) {
  std::map<std::string, std::set<std::string>> gpus;
  for (const manifest* each : of_kind("Pod")) {
    for (const gpushm::yaml::node* container : elements(find(*pod_spec(*each), {"containers"}))) {
      const auto arguments = texts(find(*container, {"args"}));
      ASSERT_FALSE(arguments.empty());
      gpus[arguments[0]] = gpus_of(*each, *container);
    }
  }
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus["producer"], gpus["consumer"]);
  EXPECT_EQ(gpus["producer"].size(), 1U);
  // A resource of several GPUs does not guarantee the same one.
  EXPECT_EQ(gpus["producer"].count("nvidia.com/gpu"), 0U);
}

TEST_P(restricted_example, both_sides_run_on_one_node) {
  const auto pods = of_kind("Pod");
  ASSERT_FALSE(pods.empty());
  if (!of_kind("ResourceClaim").empty()) {
    // A claim is allocated on one node, and its pods run there.
    for (const manifest* each : pods) {
      const auto claims = elements(find(*pod_spec(*each), {"resourceClaims"}));
      ASSERT_EQ(claims.size(), 1U);
      EXPECT_EQ(text_at(*claims[0], {"resourceClaimName"}), of_kind("ResourceClaim")[0]->name);
    }
    return;
  }
  if (pods.size() == 1) {
    EXPECT_EQ(elements(find(*pod_spec(*pods[0]), {"containers"})).size(), 2U);
    return;
  }
  ASSERT_EQ(pods.size(), 2U);
  const auto terms =
      elements(find(*pod_spec(*pods[1]),
                    {"affinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"}));
  ASSERT_EQ(terms.size(), 1U);
  EXPECT_EQ(text_at(*terms[0], {"topologyKey"}), "kubernetes.io/hostname");
  const std::string pair =
      text_at(*terms[0], {"labelSelector", "matchLabels", "gpushm.example/pair"});
  EXPECT_NE(pair, "");
  EXPECT_EQ(text_at(pods[0]->root(), {"metadata", "labels", "gpushm.example/pair"}), pair);
}

TEST_P(restricted_example, uses_only_existing_options) {
  std::map<std::string, std::string> help;
  for (const manifest* each : of_kind("Pod")) {
    for (const gpushm::yaml::node* container : containers(*pod_spec(*each))) {
      const auto command = texts(find(*container, {"command"}));
      const auto arguments = texts(find(*container, {"args"}));
      ASSERT_EQ(command.size(), 1U);
      ASSERT_FALSE(arguments.empty());
      const auto program = gpushm_testing::find_own_program(command[0]);
      ASSERT_TRUE(program) << command[0];
      auto& text = help[command[0] + ' ' + arguments[0]];
      if (text.empty()) {
        gpushm_testing::spawn_options options;
        options.argv = {*program, arguments[0], "--help"};
        const auto done = gpushm_testing::run_program(options);
        EXPECT_TRUE(done.status.success()) << done.err;
        text = done.out;
      }
      for (std::size_t i = 1; i < arguments.size(); ++i) {
        const std::string option = arguments[i].substr(0, arguments[i].find('='));
        EXPECT_NE(text.find(option + ' '), std::string::npos) << option;
      }
    }
  }
}

/// The child processes of `pid`.
std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

// A container's first process is PID 1, which the kernel terminates only by signals that it
// handles: without a handler, deleting the pod would take its whole grace period.
TEST(pair_program, exits_immediately_on_sigterm_as_pid_1) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "a PID namespace needs root";
  }
  const gpushm_testing::temp_dir folder;
  gpushm_testing::spawn_options serving;
  serving.argv = {gpushm_testing::own_program("gpushm"), "serve", "--socket", folder / "socket"};
  const auto broker = gpushm_testing::child::start(serving);
  ASSERT_TRUE(gpushm_testing::eventually([&] { return fs::exists(folder / "socket"); },
                                         std::chrono::seconds(10)));
  for (const char* role : {"consumer", "producer"}) {
    gpushm_testing::spawn_options options;
    options.argv = {"/usr/bin/unshare",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    gpushm_testing::own_program("gpushm-pair"),
                    role,
                    "--timeout",
                    "60s"};
    if (std::string_view(role) == "producer") {
      options.argv.insert(options.argv.end(), {"--device", "host", "--size", "64KiB"});
    } else {
      options.argv.insert(options.argv.end(), {"--name", "never"});
    }
    options.env = {{"GPUSHM_SOCKET", folder / "socket"}};
    auto outside = gpushm_testing::child::start(options);
    outside.wait_for_line(std::string_view(role) == "consumer" ? "waiting for" : "published",
                          std::chrono::seconds(20));
    const auto first = children_of(outside.pid());
    ASSERT_EQ(first.size(), 1U);
    ASSERT_EQ(gpushm::base::signal_process(first[0], SIGTERM), 0);
    const auto status = outside.wait_exit(gpushm_testing::scaled_timeout(std::chrono::seconds(5)));
    EXPECT_FALSE(status.success()) << role;
  }
}

TEST_F(source_examples, all_are_tested) {
  const fs::path root(GPUSHM_SOURCE_DIR);
  std::vector<std::string> examples;
  for (const auto& entry : fs::recursive_directory_iterator(root / "deploy/examples")) {
    const fs::path path = entry.path();
    // kustomize_test.cpp tests the files of kustomizations.
    if (path.extension() == ".yaml" && !fs::exists(path.parent_path() / "kustomization.yaml")) {
      examples.push_back(path.lexically_relative(root).string());
    }
  }
  std::erase(examples, namespace_file);
  std::sort(examples.begin(), examples.end());
  EXPECT_EQ(examples, files);
}

TEST_F(source_examples, readmes_show_expected_output) {
  for (const std::string& file : files) {
    const std::string readme = fs::path(file).parent_path() / "README.md";
    EXPECT_NE(source_file(readme).find("Data verification PASSED"), std::string::npos) << readme;
    EXPECT_NE(source_file(readme).find(fs::path(file).filename().string()), std::string::npos)
        << readme << " does not name " << file;
    EXPECT_NE(source_file("deploy/examples/README.md")
                  .find(fs::path(file).parent_path().filename().string() + '/'),
              std::string::npos)
        << file;
  }
}

TEST_F(source_examples, links_resolve) {
  const fs::path root(GPUSHM_SOURCE_DIR);
  for (const auto& entry : fs::recursive_directory_iterator(root / "deploy")) {
    if (entry.path().extension() == ".md") {
      const std::string path = entry.path().lexically_relative(root).string();
      for (const auto& target : local_links(source_file(path))) {
        EXPECT_TRUE(fs::exists(entry.path().parent_path() / target))
            << path << " links to " << target;
      }
    }
  }
}

/// `before` needs every privilege that the other examples do not need.
TEST_F(source_examples, before_still_needs_all_removed_privileges) {
  std::map<std::string, int> refused;
  for (const manifest& each : read_manifests(source_file(before_file), before_file)) {
    if (each.kind == "Pod") {
      for (const std::string& line : not_restricted(each)) {
        ++refused[line.substr(line.find(": ") + 2)];
      }
    }
  }
  for (const char* privilege :
       {"hostPID", "hostIPC", "privileged", "capability IPC_LOCK", "volume of type hostPath"}) {
    EXPECT_EQ(refused[privilege], 2) << privilege;
  }
}

}  // namespace
}  // namespace gpushm_tests
