// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi refresh` on a machine that boots, loses GPUs, and has other programs that write
// documents: nodes that appear one after the other, modules that are not loaded, withdrawal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "containers/cdi/registry/registry.hpp"
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
  [[nodiscard]] bool has_node(const std::string& name) const {
    const cdi::document content = cdi::load(file()).content;
    const auto& nodes = content.changes.device_nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](const cdi::device_node& each) {
      return each.path == "/dev/" + name;
    });
  }
  void wait_for(gpushm_testing::child& watcher, const std::string& pattern) {
    watcher.wait_for_line(pattern, patience, stream::err);
  }
  static void end(gpushm_testing::child& watcher) {
    watcher.kill(SIGTERM);
    EXPECT_EQ(watcher.wait_exit(patience), exited(0)) << watcher.text(stream::err);
  }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  }
  /// A document as of another generator.
  void put_foreign(const std::string& name, const std::string& device) const {
    put_file(spec(name + ".part"),
             "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"" + device +
                 "\"\n  containerEdits:\n    env:\n    - A=b\n");
    fs::rename(spec(name + ".part"), spec(name));
  }
};

// ---- control nodes ----

TEST_F(cdi_boot, document_without_control_nodes_is_refused) {
  make("local-nvidia-lib64", plain_gpus(1));
  gpus_->set_module("550.90.07");
  for (const char* const command : {"generate", "refresh"}) {
    for (const char* const node : {"nvidiactl", "nvidia-uvm"}) {
      fs::rename(dev(node), dev("later"));
      const auto refused = run({command, "--output", file()});
      // nvidiactl has static numbers: refresh creates it.
      if (command == std::string("refresh") && node == std::string("nvidiactl")) {
        EXPECT_EQ(refused.status, exited(0)) << refused.err;
        fs::remove(file());
      } else {
        EXPECT_EQ(refused.status, exited(1)) << refused.err;
        EXPECT_THAT(refused.err,
                    HasSubstr("gpushm: describe the GPUs: missing device node " + dev(node) +
                              ": CUDA would not start in any container"));
        EXPECT_THAT(refused.err, HasSubstr("--incomplete"));
        EXPECT_FALSE(fs::exists(file()));
        const auto accepted = run({command, "--incomplete", "--output", file()});
        EXPECT_EQ(accepted.status, exited(0)) << accepted.err;
        EXPECT_THAT(accepted.err, HasSubstr("warning: missing device node " + dev(node)));
        EXPECT_FALSE(has_node(node));
        fs::remove(file());
      }
      fs::rename(dev("later"), dev(node));
    }
  }
}

TEST_F(cdi_boot, follows_nodes_that_appear_one_after_the_other) {
  make("local-nvidia-lib64", plain_gpus(2));
  for (const char* const name : {"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"}) {
    fs::remove(dev(name));
  }
  auto watcher = watch({"--no-create-nodes"});
  wait_for(watcher, "waiting: ");
  put_node(dev("nvidiactl"));
  put_node(dev("nvidia0"));
  wait_for(watcher, "waiting: .*missing device node .*/nvidia-uvm: CUDA would not start");
  EXPECT_FALSE(fs::exists(file()));
  put_node(dev("nvidia-uvm"));
  wait_for(watcher, "wrote .*: it did not exist");
  EXPECT_THAT(devices(), ElementsAre("0", uuid_0, "all"));
  EXPECT_TRUE(has_node("nvidiactl"));
  EXPECT_TRUE(has_node("nvidia-uvm"));
  put_node(dev("nvidia1"));
  wait_for(watcher, "wrote .*: added: 1 and GPU-00000001.*");
  EXPECT_THAT(devices(), ElementsAre("0", uuid_0, "1", uuid_1, "all"));
  // MIG is configured later.
  gpus_->replace({recorded_gpu(), a100_three()});
  wait_for(watcher, "wrote .*: added: 1:0.*; removed: 1 ");
  end(watcher);
}

TEST_F(cdi_boot, loads_the_module_and_creates_its_nodes) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "requires root";
  }
  make("local-nvidia-lib64", plain_gpus(1));
  gpus_->set_module("550.90.07");
  fs::remove(dev("nvidia-uvm"));
  fs::remove(dev("nvidia-uvm-tools"));
  put_file(gpus_->proc_root() + "/driver/nvidia/params",
           "DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n");
  const std::string devices_file = gpus_->proc_root() + "/devices";
  put_file(devices_file, "Character devices:\n195 nvidia\n");
  const auto refresh = [&](const std::string& modprobe) {
    put_file(cli_.directory() / "bin/modprobe", "#!/bin/sh\n" + modprobe, 0755);
    auto options = command({"refresh", "--output", file()});
    options.env.emplace_back("PATH", cli_.directory() / "bin");
    return gpushm_testing::run_program(options, patience);
  };
  const auto failed = refresh("echo 'modprobe: FATAL: Module nvidia-uvm not found.' >&2; exit 1\n");
  EXPECT_EQ(failed.status, exited(1));
  EXPECT_THAT(failed.err,
              HasSubstr("CUDA would not start in any container; load the module nvidia-uvm: "
                        "modprobe: FATAL: Module nvidia-uvm not found. (load the modules"));
  EXPECT_FALSE(fs::exists(file()));

  const auto done =
      refresh("[ \"$*\" = nvidia-uvm ] && echo '511 nvidia-uvm' >>" + devices_file + "\n");
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_THAT(done.err, HasSubstr("gpushm: loaded the module nvidia-uvm\n"));
  EXPECT_THAT(done.err, HasSubstr("gpushm: created " + dev("nvidia-uvm") + "\n"));
  struct stat about {};
  ASSERT_EQ(::stat(dev("nvidia-uvm").c_str(), &about), 0);
  EXPECT_TRUE(S_ISCHR(about.st_mode));
  EXPECT_EQ(about.st_rdev, ::makedev(511, 0));
  EXPECT_EQ(about.st_mode & 07777U, 0660U);
  EXPECT_EQ(about.st_gid, 44U);
  ASSERT_EQ(::stat(dev("nvidia-uvm-tools").c_str(), &about), 0);
  EXPECT_EQ(about.st_rdev, ::makedev(511, 1));
  EXPECT_TRUE(has_node("nvidia-uvm"));

  // The module was loaded again, and has another number.
  put_file(devices_file, "Character devices:\n195 nvidia\n510 nvidia-uvm\n");
  EXPECT_EQ(refresh("exit 1\n").status, exited(0));
  ASSERT_EQ(::stat(dev("nvidia-uvm").c_str(), &about), 0);
  EXPECT_EQ(about.st_rdev, ::makedev(510, 0));
}

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

// ---- documents of other programs ----

TEST_F(cdi_boot, watch_withdraws_for_another_document_and_takes_over_again) {
  make("local-nvidia-lib64", plain_gpus(1));
  auto watcher = watch();
  wait_for(watcher, "watching; ");
  for (int round = 0; round < 2; ++round) {
    put_foreign("other.yaml", "0");
    wait_for(
        watcher,
        "withdrew .*/nvidia.yaml: .*/other.yaml defines nvidia.com/gpu=0, and engines ignore a "
        "device that two documents in one directory define");
    EXPECT_FALSE(fs::exists(file()));
    const cdi::registry engines({spec("").substr(0, spec("").size() - 1)});
    EXPECT_EQ(engines.find("nvidia.com/gpu=0").from->path, spec("other.yaml"));
    // A change of the driver does not bring it back.
    gpus_->replace(plain_gpus(2));
    gpus_->set_module("570.1.2");
    wait_for(watcher, "warning: the libraries are from driver");
    fs::remove(spec("other.yaml"));
    wait_for(watcher, "wrote .*/nvidia.yaml: .*/other.yaml no longer defines its devices");
    EXPECT_TRUE(fs::exists(file()));
    gpus_->set_module("550.90.07");
    gpus_->replace(plain_gpus(1));
    wait_for(watcher, "wrote .*: removed: 1 ");
  }
  // Other names, and documents that engines cannot read, are no conflict.
  put_foreign("other.yaml", "special");
  put_file(spec("broken.yaml"), "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: 7\n");
  fs::remove(file());
  wait_for(watcher, "wrote .*: it did not exist");
  end(watcher);
  EXPECT_EQ(count(watcher.text(stream::err), "withdrew"), 2U) << watcher.text(stream::err);
}

TEST_F(cdi_boot, document_that_exists_first_stays_the_only_one) {
  make("local-nvidia-lib64", plain_gpus(1));
  put_foreign("other.json", "all");
  auto watcher = watch();
  wait_for(watcher, "did not write .*/nvidia.yaml: .*/other.json defines nvidia.com/gpu=all");
  EXPECT_FALSE(fs::exists(file()));
  put_foreign("other.json", "special");
  wait_for(watcher, "wrote .*: .*/other.json no longer defines its devices");
  end(watcher);
}

TEST_F(cdi_boot, refresh_judges_the_directory_also_if_its_file_is_up_to_date) {
  make("local-nvidia-lib64", plain_gpus(1));
  ASSERT_EQ(run({"refresh", "--output", file()}).status, exited(0));
  put_foreign("other.yaml", "0");
  const auto withdrawn = run({"refresh", "--output", file()});
  EXPECT_EQ(withdrawn.status, exited(0));
  EXPECT_THAT(withdrawn.err, HasSubstr("gpushm: withdrew " + file() + ": " + spec("other.yaml")));
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_THAT(run({"refresh", "--output", file()}).err, HasSubstr("did not write"));
  fs::remove(spec("other.yaml"));
  EXPECT_THAT(run({"refresh", "--output", file()}).err, HasSubstr("wrote "));
}

TEST_F(cdi_boot, conflict_ends_also_while_the_driver_does_not_answer) {
  make("local-nvidia-lib64", plain_gpus(1));
  ASSERT_EQ(run({"refresh", "--output", file()}).status, exited(0));
  gpus_->replace({});
  put_foreign("other.yaml", "0");
  const auto once = run({"refresh", "--output", file()});
  EXPECT_EQ(once.status, exited(1));
  EXPECT_THAT(once.err, HasSubstr("withdrew "));
  EXPECT_FALSE(fs::exists(file()));
  fs::rename(spec("other.yaml"), spec("other"));
  gpus_->replace(plain_gpus(1));
  ASSERT_EQ(run({"refresh", "--output", file()}).status, exited(0));
  gpus_->replace({});
  fs::rename(spec("other"), spec("other.yaml"));
  auto watcher = watch();
  wait_for(watcher, "withdrew ");
  EXPECT_FALSE(fs::exists(file()));
  gpus_->replace(plain_gpus(1));
  fs::remove(spec("other.yaml"));
  wait_for(watcher, "wrote ");
  end(watcher);
}

}  // namespace
}  // namespace gpushm_tests
