// SPDX-License-Identifier: Apache-2.0
// Properties of `apply` that the reference does not cover (inject_reference_test.cpp): errors, the
// report, and unchanged members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "containers/cdi/inject/inject.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* device = "vendor.com/gpu=0";

struct outcome {
  oci_config config;
  std::vector<std::string> reported;
};

outcome applied(const edits& changes, const std::string& text = "{}") {
  outcome result{parse_config(text, "config"), {}};
  std::vector<applied_edit> done;
  apply(changes, result.config, device, done);
  for (const applied_edit& each : done) {
    EXPECT_EQ(each.device, device);
    result.reported.push_back(each.text);
  }
  return result;
}

std::string problem_of(const edits& changes, const std::string& text = "{}") {
  try {
    (void)applied(changes, text);
  } catch (const error& failure) {
    return failure.what();
  }
  return "none";
}

device_node node(std::string path,
                 std::string host_path = {},
                 std::string type = {},
                 std::int64_t major = 0,
                 std::int64_t minor = 0,
                 std::string permissions = {}) {
  device_node created;
  created.path = std::move(path);
  created.host_path = std::move(host_path);
  created.type = std::move(type);
  created.major = major;
  created.minor = minor;
  created.permissions = std::move(permissions);
  return created;
}

edits all_kinds() {
  edits changes;
  changes.env = {"A=1"};
  changes.device_nodes = {node("/dev/gpu0", "/dev/null", {}, 0, 0, "rw"),
                          node("/dev/gpu1", {}, "c", 7, 0, "none")};
  changes.net_devices = {{"eth7", "gpu0"}};
  changes.mounts = {{"/lib/a", "/usr/lib/a", {"ro", "rbind"}, ""}};
  changes.hooks = {{"createContainer", "/bin/hook", {"hook", "x", "y"}, {}, 5}};
  changes.rdt.emplace().clos_id = "gold";
  changes.additional_gids = {0, 44};
  return changes;
}

TEST(inject_apply, reports_each_edit) {
  EXPECT_THAT(applied(all_kinds()).reported,
              ElementsAre("env A=1",
                          "device /dev/gpu0 (c 1:3 rw)",
                          "device /dev/gpu1 (c 7:0 none)",
                          "network device eth7 as gpu0",
                          "mount /lib/a at /usr/lib/a",
                          "hook createContainer: /bin/hook x y",
                          "resctrl class gold",
                          "group 44"));
  EXPECT_THAT(
      applied(all_kinds(), R"({"process":{"env":["A=0"]},"mounts":[{"destination":"/usr/lib/a"}]})")
          .reported,
      ::testing::IsSupersetOf(
          {"env A=1 (replaces another)", "mount /lib/a at /usr/lib/a (replaces another)"}));
}

TEST(inject_apply, no_edits_change_nothing) {
  const std::string text = R"({"mounts":[{"destination":"/a/b"},{"destination":"/a"}],"z":{}})";
  const auto result = applied({}, text);
  EXPECT_EQ(result.config.dump(), text);
  EXPECT_THAT(result.reported, IsEmpty());
}

TEST(inject_apply, key_order_and_unknown_keys_are_kept) {
  edits changes;
  changes.env = {"A=1"};
  changes.device_nodes = {node("/dev/x", {}, "c", 4, 5)};
  EXPECT_EQ(
      applied(changes,
              R"({"zz":{"y":[1]},"linux":{"new":7,"devices":[]},"process":{"q":0,"env":[]},"a":1})")
          .config.dump(),
      R"({"zz":{"y":[1]},"linux":{"new":7,"devices":[{"path":"/dev/x","type":"c","major":4,"minor":5}],)"
      R"("resources":{"devices":[{"allow":true,"type":"c","major":4,"minor":5,"access":"rwm"}]}},)"
      R"("process":{"q":0,"env":["A=1"]},"a":1})");
}

TEST(inject_apply, second_application_is_empty) {
  const edits changes = all_kinds();
  oci_config config = parse_config("{}", "config");
  EXPECT_EQ(without_present(changes, config).device_nodes, changes.device_nodes);
  std::vector<applied_edit> done;
  apply(changes, config, device, done);
  EXPECT_TRUE(without_present(changes, config).empty());
  // Returns exactly the edits that the config no longer contains.
  config["linux"]["resources"]["devices"].erase(0);
  config["process"]["env"][0] = "A=2";
  edits left;
  left.env = changes.env;
  left.device_nodes = {changes.device_nodes[0]};
  EXPECT_EQ(without_present(changes, config), left);
}

TEST(inject_apply, config_with_wrong_types_is_rejected) {
  const auto problem = [](const char* text) { return problem_of(all_kinds(), text); };
  const std::string begin = "edit config: its member \"";
  EXPECT_EQ(problem(R"({"process":[]})"), begin + "process\" is not an object");
  EXPECT_EQ(problem(R"({"process":{"env":{}}})"), begin + "process.env\" is not an array");
  EXPECT_EQ(problem(R"({"process":{"env":[1]}})"),
            begin + "process.env\" is not an array of strings");
  EXPECT_EQ(problem(R"({"process":{"user":7}})"), begin + "process.user\" is not an object");
  EXPECT_EQ(problem(R"({"process":{"user":{"uid":"x"}}})"),
            begin + "process.user.uid\" is not an integer");
  EXPECT_EQ(problem(R"({"linux":7})"), begin + "linux\" is not an object");
  EXPECT_EQ(problem(R"({"linux":{"devices":7}})"), begin + "linux.devices\" is not an array");
  EXPECT_EQ(problem(R"({"linux":{"devices":[7]}})"),
            begin + "linux.devices\" is not an array of objects");
  EXPECT_EQ(problem(R"({"linux":{"devices":[{"path":7}]}})"),
            begin + "linux.devices.path\" is not a string");
  EXPECT_EQ(problem(R"({"linux":{"namespaces":{}}})"),
            begin + "linux.namespaces\" is not an array");
  EXPECT_EQ(problem(R"({"mounts":[{"destination":1}]})"),
            begin + "mounts.destination\" is not a string");
  EXPECT_EQ(problem(R"({"hooks":{"createContainer":{}}})"),
            begin + "hooks.createContainer\" is not an array");
}

TEST(inject_apply, unsafe_path_is_rejected) {
  const std::string begin = "inject \"vendor.com/gpu=0\": its ";
  const std::string end = " (fix the CDI document that defines it)";
  const auto with_mount = [](const char* from, const char* to) {
    edits changes;
    changes.mounts = {{from, to, {"bind"}, ""}};
    return problem_of(changes);
  };
  EXPECT_EQ(with_mount("../../etc", "/x"), begin + "mount of \"../../etc\" is not absolute" + end);
  EXPECT_EQ(with_mount("/etc", "x"), begin + "mount at \"x\" is not absolute" + end);
  EXPECT_EQ(with_mount("/a/../etc", "/x"), begin + "mount of \"/a/../etc\" contains \"..\"" + end);
  EXPECT_EQ(with_mount("/etc", "/.."), begin + "mount at \"/..\" contains \"..\"" + end);
  EXPECT_EQ(with_mount("/a..b/..c", "/..."), "none");
  edits placed;
  placed.device_nodes = {node("dev/x", {}, "c", 1)};
  EXPECT_EQ(problem_of(placed), begin + "node \"dev/x\" is not absolute" + end);
  placed.device_nodes = {node("/dev/x", "../dev/null")};
  EXPECT_EQ(problem_of(placed), begin + "node's host path \"../dev/null\" is not absolute" + end);
  placed.device_nodes = {node(std::string("/dev/x\0y", 8), {}, "c", 1)};
  EXPECT_EQ(problem_of(placed), begin + "node \"/dev/x\" contains a NUL byte" + end);
  edits hooked;
  hooked.hooks = {{"createContainer", "bin/hook", {}, {}, {}}};
  EXPECT_EQ(problem_of(hooked), begin + "hook \"bin/hook\" is not absolute" + end);
}

TEST(inject_apply, non_bind_mount_source_is_not_a_path) {
  edits changes;
  changes.mounts = {{"tmpfs", "/scratch", {"size=1m"}, "tmpfs"}};
  EXPECT_EQ(problem_of(changes), "none");
  changes.mounts = {{"tmpfs", "/scratch", {"rbind"}, "tmpfs"}};
  EXPECT_NE(problem_of(changes), "none");
}

TEST(inject_apply, missing_or_invalid_node_is_reported) {
  edits changes;
  changes.device_nodes = {node("/dev/gpushm-absent")};
  EXPECT_EQ(problem_of(changes),
            "inject \"vendor.com/gpu=0\": its node \"/dev/gpushm-absent\" cannot be accessed: No "
            "such file or directory (ENOENT) (check that the driver is loaded, then generate the "
            "CDI document again)");
  changes.device_nodes = {node("/dev/x", "/etc")};
  EXPECT_EQ(problem_of(changes),
            "inject \"vendor.com/gpu=0\": its node \"/etc\" is not a device node");
  changes.device_nodes = {node("/dev/null", {}, "b")};
  EXPECT_EQ(
      problem_of(changes),
      "inject \"vendor.com/gpu=0\": its node \"/dev/null\" is of type \"c\", but the document "
      "has \"b\"");
}

TEST(inject_apply, unknown_hook_is_rejected) {
  edits changes;
  changes.hooks = {{"beforeAll", "/bin/hook", {}, {}, {}}};
  EXPECT_EQ(problem_of(changes), "inject \"vendor.com/gpu=0\": unknown hook \"beforeAll\"");
}

TEST(inject_apply, failure_leaves_config_unchanged) {
  edits good;
  good.env = {"A=1"};
  edits bad;
  bad.device_nodes = {node("/dev/gpushm-absent")};
  const std::string text = R"({"process":{"env":["B=1"]}})";
  oci_config config = parse_config(text, "config");
  EXPECT_THROW(apply_all({{"v.com/c=0", good}, {"v.com/c=1", bad}}, config), error);
  EXPECT_EQ(config.dump(), text);
}

}  // namespace
}  // namespace gpushm::cdi
