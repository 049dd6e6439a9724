// SPDX-License-Identifier: Apache-2.0
// The ResourceSlices that agents may write: tests the shipped policy and the fake API server's copy
// of it with the same requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/deploy/manifest.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/support/fake_kube_api/admission.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr const char* policy_file = "deploy/kustomize/with-dra/admission-policy.yaml";
constexpr const char* own_account = "system:serviceaccount:gpushm-system:gpushmd";

const std::string of_own_node = "may only write ResourceSlices of its own node";
const std::string of_own_pool = "may only write to the pool of its own node";
const std::string of_own_name = "may only create its own ResourceSlice";
const std::string of_own_driver =
    "the agent may only write ResourceSlices of the driver gpushm.dev";
const std::string of_no_node =
    "the token does not name the node of its pod: use the pod's own token, from Kubernetes "
    "1.32 "
    "or newer";

json slice(const std::string& name,
           const std::string& node,
           const std::string& pool,
           const std::string& driver = "gpushm.dev") {
  return {{"metadata", {{"name", name}}},
          {"spec",
           {{"driver", driver},
            {"nodeName", node},
            {"pool", {{"name", pool}, {"generation", 99}, {"resourceSliceCount", 1}}}}}};
}

struct request {
  const char* what;
  std::string node;  ///< of the token; empty: it names no node
  json object;       ///< null: a deletion
  json before;       ///< null: a creation
  std::string refused;
};

/// Node names may have 253 characters, and so may names of slices.
std::string long_node() {
  return std::string(249, 'a') + ".b";
}

std::string long_name() {
  const std::string whole = long_node() + "-gpushm.dev";
  return "n" + whole.substr(whole.size() - 252);
}

std::vector<request> requests() {
  const json own = slice("n1-gpushm.dev", "n1", "n1");
  json for_all = own;
  for_all["spec"].erase("nodeName");
  for_all["spec"]["allNodes"] = true;
  json foreign_pool = slice("evil", "n2", "n1");
  foreign_pool["spec"]["sharedCounters"] = {
      {{"name", "c"}, {"counters", {{"x", {{"value", "1"}}}}}}};
  const json of_n2 = slice("n2-gpushm.dev", "n2", "n2");
  const json leftover = slice("n1-gpushm.dev-x", "n1", "n2");
  return {
      {"creates its slice", "n1", own, nullptr, ""},
      {"replaces its slice", "n1", own, own, ""},
      {"deletes its slice", "n1", nullptr, own, ""},
      {"deletes its slice of another name", "n1", nullptr, slice("n1-x", "n1", "n1"), ""},
      {"creates a slice with a long name",
       long_node(),
       slice(long_name(), long_node(), long_node()),
       nullptr,
       ""},
      {"creates a slice in the pool of another node",
       "n2",
       foreign_pool,
       nullptr,
       "the agent of node n2 " + of_own_pool},
      {"replaces a slice in the pool of another node",
       "n2",
       foreign_pool,
       foreign_pool,
       "the agent of node n2 " + of_own_pool},
      {"deletes its leftover slice in the pool of another node", "n1", nullptr, leftover, ""},
      {"uses the name of another node's slice",
       "n2",
       slice("n1-gpushm.dev", "n2", "n2"),
       nullptr,
       "the agent of node n2 " + of_own_name},
      {"uses another name",
       "n1",
       slice("n1-gpushm.dev-x", "n1", "n1"),
       nullptr,
       "the agent of node n1 " + of_own_name},
      {"uses a long name with another end",
       long_node(),
       slice("n" + long_name().substr(1, 250) + "xx", long_node(), long_node()),
       nullptr,
       "the agent of node " + long_node() + " " + of_own_name},
      {"creates a slice of another node",
       "n1",
       of_n2,
       nullptr,
       "the agent of node n1 " + of_own_node},
      {"replaces a slice of another node", "n1", own, of_n2, "the agent of node n1 " + of_own_node},
      {"deletes a slice of another node",
       "n1",
       nullptr,
       of_n2,
       "the agent of node n1 " + of_own_node},
      {"creates a slice of all nodes",
       "n1",
       for_all,
       nullptr,
       "the agent of node n1 " + of_own_node},
      {"creates a slice of another driver",
       "n1",
       slice("n1-gpushm.dev", "n1", "n1", "gpu.nvidia.com"),
       nullptr,
       of_own_driver},
      {"deletes a slice of another driver",
       "n1",
       nullptr,
       slice("x", "n1", "n1", "gpu.nvidia.com"),
       of_own_driver},
      {"has a token without a node", "", own, nullptr, of_no_node},
  };
}

std::string without_line_breaks(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') {
    text.pop_back();
  }
  return text;
}

// Verified on Kubernetes 1.36.2: it accepts these expressions without type warnings, and refuses
// and admits the slices of agents as below. Only the exemption of deletions from the check of the
// pool is newer.
TEST(admission_policy, has_expressions_verified_on_api_server) {
  const auto documents = read_manifests(source_file(policy_file), policy_file);
  ASSERT_EQ(documents.size(), 2U);
  std::vector<std::string> expressions;
  for (const char* part : {"variables", "validations"}) {
    for (const gpushm::yaml::node* each : elements(find(documents[0].root(), {"spec", part}))) {
      expressions.push_back(without_line_breaks(text_at(*each, {"expression"})));
      if (std::string(part) == "validations") {
        EXPECT_EQ(text_at(*each, {"reason"}), "Forbidden");
      }
    }
  }
  EXPECT_THAT(
      expressions,
      ElementsAre(
          R"(has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra )"
          R"(? request.userInfo.extra["authentication.kubernetes.io/node-name"][0] : "")",
          R"(request.operation == "CREATE" ? [object] : request.operation == "DELETE" ? [oldObject] : [oldObject, object])",
          R"(variables.node != "")",
          R"(variables.slices.all(slice, has(slice.spec.nodeName) && slice.spec.nodeName == variables.node))",
          R"(variables.slices.all(slice, slice.spec.driver == "gpushm.dev"))",
          R"(request.operation == "DELETE" || variables.slices.all(slice, slice.spec.pool.name == variables.node))",
          R"(request.operation != "CREATE" || object.metadata.name == variables.node + "-gpushm.dev" || )"
          R"(size(variables.node) > 242 && object.metadata.name == "n" + )"
          R"((variables.node + "-gpushm.dev").substring(size(variables.node) + 11 - 252))"));
}

TEST(admission_policy, fake_api_server_gives_same_results) {
  for (const request& each : requests()) {
    EXPECT_EQ(gpushm::testing::policy_violation(each.node, each.object, each.before), each.refused)
        << each.what;
  }
}

TEST(admission_policy, evaluated_policy_gives_same_results) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  const char* const chosen = std::getenv("GPUSHM_CEL_PYTHON");
  const std::string python = chosen != nullptr ? chosen : "python3";
  if (chosen == nullptr && !gpushm_testing::find_in_path(python)) {
    GTEST_SKIP() << "no python3 in $PATH";
  }
  json inputs = json::array();
  std::vector<std::string> expected;
  for (const request& each : requests()) {
    const char* const operation = each.before.is_null()   ? "CREATE"
                                  : each.object.is_null() ? "DELETE"
                                                          : "UPDATE";
    inputs.push_back({{"operation", operation},
                      {"username", own_account},
                      {"node", each.node},
                      {"object", each.object},
                      {"oldObject", each.before}});
    expected.push_back(each.refused);
  }
  // The policy does not apply to other users.
  inputs.push_back(inputs.at(5));
  inputs.back()["username"] = "admin";
  expected.emplace_back();

  const std::string root = GPUSHM_SOURCE_DIR;
  auto script = gpushm_testing::child::start(
      {.argv = {python, root + "/tests/deploy/admission_policy.py", root + "/" + policy_file}});
  try {
    script.write(inputs.dump());
    script.close_stdin();
  } catch (const std::exception&) {
    // It exits immediately if no evaluator is installed.
  }
  const auto status = script.wait_exit(gpushm_testing::scaled_timeout(std::chrono::seconds(60)));
  if (status == gpushm_testing::exited(77)) {
    GTEST_SKIP() << "no evaluator of CEL for " << python << " (pip install cel-python, or "
                 << "GPUSHM_CEL_PYTHON): " << script.text(gpushm_testing::stream::out);
  }
  ASSERT_TRUE(status.success()) << script.text(gpushm_testing::stream::err);
  EXPECT_EQ(json::parse(script.text(gpushm_testing::stream::out)), json(expected));
}

}  // namespace
}  // namespace gpushm_tests
