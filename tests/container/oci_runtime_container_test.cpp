// SPDX-License-Identifier: Apache-2.0
// The real runc and crun with configs that `gpushm-oci-runtime` and `gpushm cdi inject` edited. The
// GPUs are nodes with the numbers of other devices, which open without hardware and which no
// runtime allows by default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/support/oci/bundle.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using gpushm::app::oci::bundle;
using gpushm::app::oci::container_options;
using gpushm::app::oci::runtime;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds timeout{60};

// fuse and loop-control.
constexpr auto minors = std::to_array<unsigned>({229, 237});
constexpr unsigned misc_major = 10;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string bundle_path(const bundle& created) {
  const auto command = created.run_command();
  return *std::next(std::find(command.begin(), command.end(), "--bundle"));
}

class oci_runtime_container : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    const auto runtime = gpushm::app::oci::find_runtime(GetParam());
    if (!runtime) {
      GTEST_SKIP() << "no " << GetParam() << " in $PATH";
    }
    real_ = *runtime;
    for (const unsigned minor : minors) {
      const std::string node = gpu_node(minor);
      ASSERT_EQ(::mknod(node.c_str(), S_IFCHR | 0666U, makedev(misc_major, minor)), 0);
      ASSERT_EQ(::chmod(node.c_str(), 0666), 0);
      if (!std::ofstream(node)) {
        GTEST_SKIP() << "the device " << misc_major << ":" << minor << " cannot be opened here";
      }
    }
    std::ofstream(directory_ / "libcuda.so.1") << "driver\n";
    ASSERT_EQ(::mkdir((directory_ / "cdi").c_str(), 0755), 0);
    std::ofstream(directory_ / "cdi/nvidia.json") << document("1.1.0");
    std::ofstream(directory_ / "settings.yaml")
        << "runtimes: [" << real_.path << "]\nspec_dirs: [" << (directory_ / "cdi")
        << "]\nlog: " << (directory_ / "log")
        << "\nlog_format: json\naccept_variable_unprivileged: true\n";
  }

  [[nodiscard]] std::string gpu_node(unsigned minor) const {
    return directory_ / ("gpu" + std::to_string(minor));
  }

  [[nodiscard]] std::string document(const std::string& version) const {
    json devices = json::array();
    for (std::size_t i = 0; i < minors.size(); ++i) {
      const std::string index = std::to_string(i);
      devices.push_back(
          {{"name", index},
           {"containerEdits",
            {{"deviceNodes",
              {{{"path", "/dev/nvidia" + index}, {"hostPath", gpu_node(minors.at(i))}}}}}}});
    }
    const std::string hook = "cat > " + (directory_ / "hook");
    return json{
        {"cdiVersion", version},
        {"kind", "nvidia.com/gpu"},
        {"devices", devices},
        {"containerEdits",
         {{"env", {"NVIDIA_VISIBLE_DEVICES=void", "DRIVER=here"}},
          {"additionalGids", {4242}},
          {"hooks",
           {{{"hookName", "createContainer"}, {"path", "/bin/sh"}, {"args", {"sh", "-c", hook}}}}},
          {"mounts",
           {{{"hostPath", directory_ / "libcuda.so.1"},
             {"containerPath", "/opt/driver/libcuda.so.1"},
             {"options", {"ro", "nosuid", "nodev", "rbind", "rprivate"}}}}}}}}
        .dump();
  }

  /// The runtime under test instead of the real one.
  [[nodiscard]] runtime wrapper() const {
    runtime created{own_program("gpushm-oci-runtime"), real_.command};
    created.command.pop_back();
    for (const std::string& word : {std::string("/usr/bin/env"),
                                    "GPUSHM_OCI_RUNTIME_CONFIG=" + (directory_ / "settings.yaml"),
                                    created.path}) {
      created.command.push_back(word);
    }
    return created;
  }

  /// A container that tries both devices: at their paths, and through nodes that it creates.
  [[nodiscard]] static container_options trying(
      std::vector<std::pair<std::string, std::string>> env) {
    container_options options;
    options.argv = {"/bin/sh",
                    "-c",
                    "for i in 0 1; do [ -c /dev/nvidia$i ] && (exec 3<>/dev/nvidia$i) 2>&1 && echo "
                    "nvidia$i opens; done\n"
                    "for m in 229 237; do mknod /dev/own$m c 10 $m && chmod 666 /dev/own$m &&\n"
                    "  (exec 3<>/dev/own$m) 2>&1 && echo own$m opens; done\n"
                    "echo env $NVIDIA_VISIBLE_DEVICES $DRIVER\n"
                    "cat /opt/driver/libcuda.so.1 2>&1\n"
                    "echo groups $(id -G)\n"
                    "true"};
    options.uid = 0;
    options.gid = 0;
    options.env = std::move(env);
    return options;
  }

  /// Root with permission to create nodes, as in containers of engines.
  static void allow_mknod(const bundle& created) {
    const std::string path = bundle_path(created) + "/config.json";
    json config = json::parse(contents(path));
    for (const char* set : {"bounding", "effective", "permitted"}) {
      config["process"]["capabilities"][set].push_back("CAP_MKNOD");
    }
    json& rules = config["linux"]["resources"]["devices"];
    rules.push_back({{"allow", true}, {"type", "c"}, {"access", "m"}});
    std::ofstream(path) << config.dump(2);
  }

  /// The container's output.
  [[nodiscard]] static std::string run(const bundle& created) {
    spawn_options options;
    options.argv = created.run_command();
    const auto ran = run_program(options, timeout);
    EXPECT_EQ(ran.status, exited(0)) << ran.out << ran.err << created.log_text();
    return ran.out;
  }
  [[nodiscard]] std::string output_of(
      const std::vector<std::pair<std::string, std::string>>& env) const {
    bundle created(wrapper(), trying(env), "gpushm-test");
    allow_mknod(created);
    return run(created);
  }

  temp_dir directory_{0755};
  runtime real_;
};

constexpr const char* refused = "Operation not permitted";

TEST_P(oci_runtime_container, container_gets_only_requested_gpu) {
  const std::string text = output_of({{"NVIDIA_VISIBLE_DEVICES", "0"}});
  EXPECT_THAT(text, HasSubstr("nvidia0 opens\n"));
  EXPECT_THAT(text, HasSubstr("own229 opens\n"));
  EXPECT_THAT(text, Not(HasSubstr("nvidia1 opens")));
  EXPECT_THAT(text, HasSubstr("/dev/own237: " + std::string(refused)));
  EXPECT_THAT(text, HasSubstr("env void here\n"));
  EXPECT_THAT(text, HasSubstr("driver\n"));
  EXPECT_THAT(text, HasSubstr("groups 0 4242\n"));
  // The hook got the container's state.
  EXPECT_THAT(contents(directory_ / "hook"), HasSubstr("\"status\""));
  const std::string log = contents(directory_ / "log");
  EXPECT_THAT(log,
              HasSubstr("\"edit\":\"device /dev/nvidia0 (c 10:229 rwm)\","
                        "\"reason\":\"NVIDIA_VISIBLE_DEVICES=0\""));
}

TEST_P(oci_runtime_container, second_container_gets_the_other_gpu) {
  const std::string text = output_of({{"NVIDIA_VISIBLE_DEVICES", "1"}});
  EXPECT_THAT(text, HasSubstr("nvidia1 opens\n"));
  EXPECT_THAT(text, Not(HasSubstr("nvidia0 opens")));
  EXPECT_THAT(text, HasSubstr("/dev/own229: " + std::string(refused)));
}

TEST_P(oci_runtime_container, container_without_request_gets_no_gpu) {
  const std::string none = output_of({{"NVIDIA_VISIBLE_DEVICES", "none"}});
  EXPECT_THAT(none, AllOf(HasSubstr("driver\n"), Not(HasSubstr(" opens"))));
  const std::string nothing = output_of({});
  EXPECT_THAT(nothing, Not(HasSubstr("driver\n")));
  EXPECT_THAT(nothing, HasSubstr("/dev/own229: " + std::string(refused)));
  EXPECT_THAT(nothing, HasSubstr("/dev/own237: " + std::string(refused)));
  const std::string all = output_of({{"NVIDIA_VISIBLE_DEVICES", "all"}});
  EXPECT_THAT(all, AllOf(HasSubstr("nvidia0 opens\n"), HasSubstr("nvidia1 opens\n")));
}

TEST_P(oci_runtime_container, unknown_gpu_prevents_start) {
  bundle created(wrapper(), trying({{"NVIDIA_VISIBLE_DEVICES", "7"}}), "gpushm-test");
  const std::string file = bundle_path(created) + "/config.json";
  const std::string before = contents(file);
  spawn_options options;
  options.argv = created.run_command();
  const auto ran = run_program(options, timeout);
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("gpushm-oci-runtime: add devices \"7\": "));
  EXPECT_THAT(created.log_text(), HasSubstr("level=error msg=\"gpushm-oci-runtime: add devices"));
  EXPECT_EQ(contents(file), before);
}

TEST_P(oci_runtime_container, engine_devices_are_not_added_twice) {
  bundle created(wrapper(), trying({}), "gpushm-test");
  allow_mknod(created);
  const std::string file = bundle_path(created) + "/config.json";
  json config = json::parse(contents(file));
  config["annotations"]["cdi.k8s.io/plugin_1"] = "nvidia.com/gpu=0";
  std::ofstream(file) << config.dump(2);
  std::ofstream(directory_ / "settings.yaml", std::ios::app)
      << "annotation_prefixes: [cdi.k8s.io/]\n";
  spawn_options inject;
  inject.argv = {own_program("gpushm"),
                 "cdi",
                 "inject",
                 "nvidia.com/gpu=0",
                 "--spec",
                 file,
                 "--in-place",
                 "--spec-dir",
                 directory_ / "cdi"};
  const auto injected = run_program(inject, timeout);
  ASSERT_EQ(injected.status, exited(0)) << injected.err;
  const std::string before = contents(file);
  const std::string text = run(created);
  EXPECT_THAT(text, HasSubstr("nvidia0 opens\n"));
  EXPECT_EQ(contents(file), before);
}

// Newer documents than podman 4.3 can read.
TEST_P(oci_runtime_container, runs_injected_documents_of_any_version) {
  for (const char* version : {"0.7.0", "0.8.0", "1.0.0", "1.1.0"}) {
    std::ofstream(directory_ / "cdi/nvidia.json") << document(version);
    bundle created(real_, trying({}), "gpushm-test");
    allow_mknod(created);
    spawn_options inject;
    inject.argv = {own_program("gpushm"),
                   "cdi",
                   "inject",
                   "nvidia.com/gpu=1",
                   "--spec",
                   bundle_path(created) + "/config.json",
                   "--in-place",
                   "--spec-dir",
                   directory_ / "cdi"};
    const auto injected = run_program(inject, timeout);
    ASSERT_EQ(injected.status, exited(0)) << version << injected.err;
    const std::string text = run(created);
    EXPECT_THAT(text, HasSubstr("nvidia1 opens\n")) << version;
    EXPECT_THAT(text, HasSubstr("/dev/own229: " + std::string(refused))) << version;
    EXPECT_THAT(text, HasSubstr("groups 0 4242\n")) << version;
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         oci_runtime_container,
                         ::testing::Values("runc", "crun"),
                         [](const auto& setting) { return std::string(setting.param); });

}  // namespace
}  // namespace gpushm_testing
