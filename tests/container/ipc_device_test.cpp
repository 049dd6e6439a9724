// SPDX-License-Identifier: Apache-2.0
// The CDI device gpushm.dev/ipc in containers of podman and of `gpushm-oci-runtime`, together with
// libraries that others preload there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "containers/cdi/document/parse.hpp"
#include "tests/support/container/podman.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::own_library;
using gpushm_testing::own_program;
using gpushm_testing::podman;
using gpushm_testing::podman_options;
using gpushm_testing::run_program;
using gpushm_testing::run_result;
using gpushm_testing::scaled_timeout;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr const char* device = "gpushm.dev/ipc=default";
constexpr const char* library = "/run/gpushm/ipc/libgpushm-ipc.so";
// As of HAMi's device plugin: a library and a list, both mounted from the host.
constexpr const char* other = "/usr/local/vgpu/libvgpu.so";
constexpr const char* list = "/etc/ld.so.preload";

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class ipc_device : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_podman()) {
      GTEST_SKIP() << *reason;
    }
    engine_ = std::make_unique<podman>();
    for (const auto& [name, from] : {std::pair("libgpushm-ipc.so", "libpreload_standin.so"),
                                     std::pair("libgpushm.so.1", "libpreload_standin.so"),
                                     std::pair("other.so", "libpreload_dlsym.so")}) {
      fs::copy_file(own_library(from), libraries_ / name);
    }
    std::ofstream(host_ / "ld.so.preload") << other << "\n";
    fs::create_directory(engine_->domains_directory() + "/default");
    const auto written = describe({"ipc"}, "ipc.yaml");
    ASSERT_EQ(written.status, exited(0)) << written.err;
  }

  /// Writes a document with `gpushm cdi`.
  [[nodiscard]] run_result describe(std::vector<std::string> command,
                                    const std::string& file) const {
    command.insert(command.begin(), {own_program("gpushm"), "cdi"});
    command.insert(command.end(),
                   {"--directory",
                    engine_->domains_directory(),
                    "--libraries",
                    libraries_.path(),
                    "--hook-path",
                    own_program("gpushm-cdi-hook"),
                    "--output",
                    engine_->cdi_directory() + "/" + file});
    return run_program({.argv = command});
  }

  [[nodiscard]] podman_options with(const std::vector<std::string>& devices) const {
    podman_options options;
    options.devices = devices;
    options.argv = {"/opt/probe", "cuIpcOpenMemHandle_v2", "cuMemAlloc_v2"};
    options.mounts = {{own_program("preload_probe"), "/opt/probe"},
                      {libraries_ / "other.so", other}};
    options.more = {"--user", "1000:1000", "--cap-drop", "all", "--read-only"};
    return options;
  }
  [[nodiscard]] run_result run(const podman_options& options) const {
    return run_program(engine_->run(options), scaled_timeout(seconds(60)));
  }

  std::unique_ptr<podman> engine_;
  gpushm_testing::temp_dir libraries_{0755};
  gpushm_testing::temp_dir host_{0755};
};

constexpr const char* variables =
    "LD_PRELOAD=(unset)\nGPUSHM_IPC_DOMAIN=default\nGPUSHM_SOCKET=(unset)\n";

TEST_F(ipc_device, is_preloaded_and_selects_its_domain) {
  const auto result = run(with({device}));
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(
      result.out,
      std::string("cuIpcOpenMemHandle_v2 ") + library + "\ncuMemAlloc_v2 (none)\n" + variables)
      << result.err;
  EXPECT_EQ(result.err, "");
  const auto without = run(with({}));
  EXPECT_THAT(without.out, StartsWith("cuIpcOpenMemHandle_v2 (none)\n")) << without.err;
}

TEST_F(ipc_device, mounts_domain_and_libraries_read_only) {
  auto options = with({device});
  options.argv = {"/bin/sh",
                  "-c",
                  "echo /run/gpushm/d/* /run/gpushm/ipc/*; "
                  "(: > /run/gpushm/ipc/x) || (: > /run/gpushm/d/default/x) || (: > " +
                      std::string(list) + ") || echo refused"};
  options.more = {};
  const auto result = run(options);
  EXPECT_EQ(result.out,
            "/run/gpushm/d/default /run/gpushm/ipc/libgpushm-ipc.so /run/gpushm/ipc/libgpushm.so.1 "
            "/run/gpushm/ipc/other.so\nrefused\n")
      << result.err;
}

TEST_F(ipc_device, library_in_list_of_the_host_stays_preloaded) {
  auto options = with({device});
  options.mounts.push_back({host_ / "ld.so.preload", list});
  const auto result = run(options);
  EXPECT_EQ(result.out,
            std::string("cuIpcOpenMemHandle_v2 ") + library + "\ncuMemAlloc_v2 " + other + "\n" +
                variables)
      << result.err;
  EXPECT_EQ(content_of(host_ / "ld.so.preload"), std::string(other) + "\n");
}

TEST_F(ipc_device, image_keeps_its_own_variable) {
  engine_->build_image("localhost/preloading",
                       std::string("ENV LD_PRELOAD=") + other + " GPUSHM_IPC_DOMAIN=x\n",
                       {});
  auto options = with({device});
  options.image = "localhost/preloading";
  const auto result = run(options);
  EXPECT_EQ(result.out,
            std::string("cuIpcOpenMemHandle_v2 ") + library + "\ncuMemAlloc_v2 " + other +
                "\nLD_PRELOAD=" + other + "\nGPUSHM_IPC_DOMAIN=default\nGPUSHM_SOCKET=(unset)\n")
      << result.err;
}

TEST_F(ipc_device, share_device_can_bring_the_library) {
  const auto written = describe({"share", "--ipc"}, "share.yaml");
  ASSERT_EQ(written.status, exited(0)) << written.err;
  const auto result = run(with({"gpushm.dev/share=default"}));
  EXPECT_THAT(result.out, StartsWith(std::string("cuIpcOpenMemHandle_v2 ") + library + "\n"))
      << result.err;
  // Both: the hook runs twice.
  const auto both = run(with({"gpushm.dev/share=default", device}));
  EXPECT_EQ(both.out, result.out) << both.err;
  EXPECT_EQ(both.err, "");
}

TEST_F(ipc_device, image_cannot_request_it_from_the_oci_runtime) {
  std::ofstream(host_ / "settings.yaml")
      << "runtimes: [runc]\nspec_dirs: [" << engine_->cdi_directory()
      << "]\naccept_variable_unprivileged: true\n";
  engine_->build_image("localhost/asking",
                       "ENV NVIDIA_VISIBLE_DEVICES=gpushm.dev/ipc=default\n",
                       {"cdi.k8s.io/a=gpushm.dev/ipc=default"});
  const std::string runtime = host_ / "gpushm-oci-runtime";
  std::ofstream(runtime) << "#!/bin/sh\nGPUSHM_OCI_RUNTIME_CONFIG=" << (host_ / "settings.yaml")
                         << " exec " << own_program("gpushm-oci-runtime") << " \"$@\"\n";
  ASSERT_EQ(::chmod(runtime.c_str(), 0755), 0);
  auto options = with({});
  options.image = "localhost/asking";
  options.runtime = runtime;
  const auto result = run(options);
  EXPECT_NE(result.status, exited(0));
  EXPECT_THAT(result.err, HasSubstr("it names a device of another kind than nvidia.com/gpu"));
  EXPECT_EQ(result.out, "");
}

TEST_F(ipc_device, engine_user_can_request_it_from_the_oci_runtime) {
  std::ofstream(host_ / "settings.yaml")
      << "runtimes: [runc]\nspec_dirs: [" << engine_->cdi_directory()
      << "]\nannotation_prefixes: [cdi.k8s.io/]\n";
  const std::string runtime = host_ / "gpushm-oci-runtime";
  std::ofstream(runtime) << "#!/bin/sh\nGPUSHM_OCI_RUNTIME_CONFIG=" << (host_ / "settings.yaml")
                         << " exec " << own_program("gpushm-oci-runtime") << " \"$@\"\n";
  ASSERT_EQ(::chmod(runtime.c_str(), 0755), 0);
  auto options = with({});
  options.runtime = runtime;
  options.more.insert(options.more.end(), {"--annotation", "cdi.k8s.io/a=gpushm.dev/ipc=default"});
  const auto result = run(options);
  EXPECT_EQ(
      result.out,
      std::string("cuIpcOpenMemHandle_v2 ") + library + "\ncuMemAlloc_v2 (none)\n" + variables)
      << result.err;
}

}  // namespace
}  // namespace gpushm_tests
