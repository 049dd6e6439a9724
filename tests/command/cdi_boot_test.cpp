// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi generate` and `gpushm cdi refresh` on a machine that loses GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/command/cdi_generate_fixture.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::stream;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto patience = seconds(60);
constexpr const char* uuid_0 = "GPU-00000000-1111-4222-8333-444455556666";
constexpr const char* uuid_1 = "GPU-00000001-1111-4222-8333-444455556666";

class cdi_boot : public cdi_generate {
 protected:
  [[nodiscard]] std::string dev(const std::string& name) const { return gpus_->dev() + "/" + name; }
  [[nodiscard]] std::string file() const { return spec("nvidia.yaml"); }
  [[nodiscard]] std::vector<std::string> devices() const {
    return names(cdi::load(file()).content);
  }
  void wait_for(gpushm_testing::child& watcher, const std::string& pattern) {
    watcher.wait_for_line(pattern, patience, stream::err);
  }
  static void end(gpushm_testing::child& watcher) {
    watcher.kill(SIGTERM);
    EXPECT_EQ(watcher.wait_exit(patience), exited(0)) << watcher.text(stream::err);
  }
};

// ---- lost GPUs ----

TEST_F(cdi_boot, lost_gpu_does_not_hide_the_others) {
  make("local-nvidia-lib64", {recorded_gpu(), recorded_gpu(), a100_three()});
  put_file(gpus_->root() + "/lost", std::string(uuid_1) + "\n");
  const std::string warning = "gpushm: warning: left out: GPU 1: nvmlDeviceGetHandleByIndex: ";
  const auto generated = generate({"--device-name-strategy=index"});
  EXPECT_THAT(names(document_of(generated)), ElementsAre("0", "2:0", "2:1", "2:2", "all"));
  EXPECT_THAT(generated.err, HasSubstr(warning));
  const auto refreshed = run({"refresh", "--output", file()});
  EXPECT_EQ(refreshed.status, exited(0));
  EXPECT_THAT(refreshed.err, HasSubstr(warning));
  EXPECT_THAT(devices(), ::testing::Contains("0"));
  EXPECT_THAT(devices(), Not(::testing::Contains("1")));

  // An instance whose queries fail.
  const auto instance = document_of(generate({"--device-name-strategy=uuid"})).devices.at(1).name;
  put_file(gpus_->root() + "/lost", instance + "\n");
  const auto others = generate({"--device-name-strategy=index"});
  EXPECT_THAT(names(document_of(others)), ElementsAre("0", "1", "2:1", "2:2", "all"));
  EXPECT_THAT(others.err, HasSubstr("gpushm: warning: left out: GPU 2, instance 0: "));

  put_file(gpus_->root() + "/lost", std::string(uuid_0) + "\n");
  const auto chosen = generate({"--device-id", "0"});
  EXPECT_EQ(chosen.status, exited(1));
  EXPECT_THAT(chosen.err, HasSubstr("find device \"0\": no such device; available: 1 = "));
  EXPECT_THAT(chosen.err, HasSubstr("; left out: GPU 0: nvmlDeviceGetHandleByIndex: "));
}

TEST_F(cdi_boot, watch_follows_a_loss_and_later_changes) {
  make("local-nvidia-lib64", plain_gpus(2));
  auto watcher = watch();
  wait_for(watcher, "watching; ");
  put_file(gpus_->root() + "/lost", std::string(uuid_0) + "\n");
  put_file(dev("nvidia-event"), "");
  wait_for(watcher, "warning: left out: GPU 0: ");
  wait_for(watcher, "wrote .*: removed: 0 and GPU-00000000");
  gpus_->replace({recorded_gpu(), a100_three()});
  wait_for(watcher, "wrote .*: added: 1:0.*; removed: 1 ");
  end(watcher);
}

TEST_F(cdi_boot, no_gpu_left_is_an_error_with_the_reason) {
  make("local-nvidia-lib64", plain_gpus(1));
  put_file(gpus_->root() + "/lost", std::string(uuid_0) + "\n");
  const auto result = generate();
  EXPECT_EQ(result.status, exited(1));
  EXPECT_THAT(result.err, HasSubstr("gpushm: describe the GPUs: left out: GPU 0: nvml"));
}

}  // namespace
}  // namespace gpushm_tests
