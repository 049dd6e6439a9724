// SPDX-License-Identifier: Apache-2.0
// An image that asks for a domain, a GPU and another device in each way that an image has, run by
// the distribution's podman with gpushm-oci-runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "tests/support/container/podman.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* image = "localhost/gpushm-hostile";

// Uses only shell builtins: the image has no other program.
constexpr const char* print_all =
    "echo \"gpu=$GOT_GPU other=$GOT_OTHER domain=$GOT_DOMAIN\"\n"
    "for file in /run/gpushm/d/default/*; do [ ! -e \"$file\" ] || echo \"file $file\"; done\n";

constexpr const char* nothing = "gpu= other= domain=\n";

class hostile_image : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_podman()) {
      GTEST_SKIP() << *reason;
    }
    engine_ = std::make_unique<podman>();
    std::filesystem::create_directory(directory_ / "domain");
    std::ofstream(directory_ / "domain/socket");
    describe("nvidia.com/gpu", "0", R"({"env":["GOT_GPU=1"]})");
    describe("vendor.example/device", "x", R"({"env":["GOT_OTHER=1"]})");
    describe("gpushm.dev/share",
             "default",
             R"({"env":["GOT_DOMAIN=1"],"mounts":[{"hostPath":")" + (directory_ / "domain") +
                 R"(","containerPath":"/run/gpushm/d/default","options":["ro","rbind"]}]})");
    set("");
    // conmon starts the runtime without podman's environment.
    std::ofstream(runtime()) << "#!/bin/sh\nGPUSHM_OCI_RUNTIME_CONFIG="
                             << (directory_ / "settings.yaml") << " exec "
                             << own_program("gpushm-oci-runtime") << " \"$@\"\n";
    ASSERT_EQ(::chmod(runtime().c_str(), 0755), 0);
  }

  void describe(const std::string& kind, const std::string& name, const std::string& edits) const {
    std::string file = kind;
    file[file.find('/')] = '-';
    std::ofstream(engine_->cdi_directory() + "/" + file + ".json")
        << R"({"cdiVersion":"0.5.0","kind":")" << kind << R"(","devices":[{"name":")" << name
        << R"(","containerEdits":)" << edits << "}]}";
  }
  /// The operator's settings.
  void set(const std::string& more) const {
    std::ofstream(directory_ / "settings.yaml")
        << "runtimes: [runc]\nspec_dirs: [" << engine_->cdi_directory()
        << "]\nlog: " << (directory_ / "log") << "\n"
        << more;
  }
  [[nodiscard]] std::string runtime() const { return directory_ / "runtime"; }
  [[nodiscard]] std::string log() const {
    std::ifstream file(directory_ / "log");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  [[nodiscard]] run_result run(std::vector<std::string> more = {}) const {
    podman_options options;
    options.argv = {"/bin/sh", "-c", print_all};
    options.image = image;
    options.runtime = runtime();
    options.more = std::move(more);
    return run_program(engine_->run(options), scaled_timeout(std::chrono::seconds(60)));
  }

  temp_dir directory_{0755};
  std::unique_ptr<podman> engine_;
};

TEST_F(hostile_image, gets_nothing_without_the_operators_word) {
  engine_->build_image(image,
                       "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all\n"
                       "LABEL cdi.k8s.io/l=gpushm.dev/share=default "
                       "io.containers.capabilities=SYS_ADMIN\n"
                       "VOLUME /run/gpushm/d/default /var/run/nvidia-container-devices/0\n"
                       "USER 64000\n"
                       "WORKDIR /run/gpushm/d/default\n",
                       {"cdi.k8s.io/a=gpushm.dev/share=default",
                        "cdi.k8s.io/b=nvidia.com/gpu=0",
                        "cdi.k8s.io/c=vendor.example/device=x",
                        "io.container.manager=cri-o"});
  // The default, except that mounts are accepted: a volume of an image is not such a mount.
  set("accept_mounts: true\n");
  auto ran = run();
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_EQ(ran.out, nothing);
  // podman has copied them.
  EXPECT_THAT(log(),
              AllOf(HasSubstr("ignored annotation cdi.k8s.io/a: annotation_prefixes is empty\n"),
                    HasSubstr("ignored annotation cdi.k8s.io/b: annotation_prefixes is empty\n"),
                    HasSubstr("ignored annotation cdi.k8s.io/c: annotation_prefixes is empty\n"),
                    HasSubstr("ignored NVIDIA_VISIBLE_DEVICES=all: "),
                    Not(HasSubstr(" info "))));
  // The operator's word for the variable: GPUs, and nothing else.
  set("accept_variable_unprivileged: true\n");
  EXPECT_EQ(run().out, "gpu=1 other= domain=\n");
  // And for annotations, which the documentation advises against on podman.
  set("annotation_prefixes: [cdi.k8s.io/]\n");
  ran = run();
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_EQ(ran.out, "gpu=1 other=1 domain=1\nfile /run/gpushm/d/default/socket\n");
}

TEST_F(hostile_image, gets_no_device_of_another_kind_by_variable) {
  engine_->build_image(
      image, "ENV NVIDIA_VISIBLE_DEVICES=gpushm.dev/share=default,vendor.example/device=x\n", {});
  set("accept_variable_unprivileged: true\n");
  const auto ran = run();
  EXPECT_FALSE(ran.status.success());
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), HasSubstr("it names a device of another kind than nvidia.com/gpu"));
}

}  // namespace
}  // namespace gpushm_testing
