// SPDX-License-Identifier: Apache-2.0
// Inventory and health with the fake NVML: A100 and H100 layouts, events, lost GPUs, new layouts.
#include "gpu/driver/nvml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "base/segments/device_loss.hpp"
#include "kubernetes/device_plugin/health/gpu_watch.hpp"
#include "kubernetes/device_plugin/health/monitor.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"
#include "tests/kubelet/plugin/world.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::device_plugin {
namespace {

using namespace gpushm_tests;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto timeout = 30s;

class plugin_nvml : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_make_nodes(root_.path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
    library_ = fake::fake_driver_directory() + "/libnvidia-ml.so.1";
    driver::nvml_library::set_alternative_path(library_);
  }
  void make_tree(const std::vector<recorded_gpu>& gpus) {
    tree_.emplace(root_.path(), gpus, "550.54.15");
    for (const auto& [name, value] : tree_->environment()) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  /// NVML stays loaded in a process: the new tree replaces the previous one.
  gpu_tree& set_gpus(const std::vector<recorded_gpu>& gpus) {
    make_tree(gpus);
    const auto* nvml = driver::nvml_library::try_instance();
    if (nvml != nullptr && nvml->driver_version() != "580.0.fake") {
      skip_ = "a real NVML is found before the fake one";
    }
    return *tree_;
  }
  [[nodiscard]] inventory take() const { return take_inventory(library_, tree_->sys_root()); }
  void put(const std::string& name, const std::string& text) const {
    put_file(root_ / (name + ".new"), text);
    std::filesystem::rename(root_ / (name + ".new"), root_ / name);
  }
  void event(const std::string& line) const {
    std::ofstream(root_ / "events", std::ios::app) << line << "\n";
  }

  gpushm_testing::temp_dir root_;
  std::string library_;
  std::string skip_;
  std::optional<gpu_tree> tree_;
};

#define SKIP_IF_REAL()     \
  if (!skip_.empty()) {    \
    GTEST_SKIP() << skip_; \
  }

std::vector<std::string> profiles_of(const gpu_info& gpu) {
  std::vector<std::string> profiles;
  for (const instance& each : gpu.instances) {
    profiles.push_back(each.profile);
  }
  return profiles;
}

TEST_F(plugin_nvml, gpus_are_described_with_mig_layout) {
  set_gpus({a100_three(), h100_mixed(), h100_halves(), {}});
  SKIP_IF_REAL();
  put_file(tree_->sys_root() + "/bus/pci/devices/0000:18:00.0/numa_node", "1\n");
  put_file(tree_->sys_root() + "/bus/pci/devices/0000:20:00.0/numa_node", "-1\n");
  const inventory inventory = take();
  ASSERT_EQ(inventory.gpus.size(), 4U) << inventory.problem;
  EXPECT_EQ(inventory.driver_version, "580.0.fake");
  EXPECT_EQ(inventory.gpus[0].name, "NVIDIA A100-SXM4-40GB");
  EXPECT_EQ(inventory.gpus[0].numa_node, 1);
  EXPECT_EQ(inventory.gpus[1].numa_node, std::nullopt);
  EXPECT_EQ(inventory.gpus[2].numa_node, std::nullopt);
  EXPECT_THAT(profiles_of(inventory.gpus[0]), ElementsAre("3g.20gb", "2g.10gb", "1g.5gb"));
  EXPECT_THAT(profiles_of(inventory.gpus[1]), ElementsAre("3g.40gb", "1g.20gb", "1g.10gb"));
  EXPECT_THAT(profiles_of(inventory.gpus[2]), ElementsAre("2c.4g.40gb", "2c.4g.40gb", "3g.40gb"));
  EXPECT_THAT(profiles_of(inventory.gpus[3]), ElementsAre());
  // One link, on one NUMA node.
  EXPECT_EQ(inventory.closeness[0][3], 120U);
  EXPECT_EQ(inventory.closeness[3][0], 120U);
  EXPECT_EQ(inventory.closeness[2][2], 0U);
  EXPECT_EQ(inventory.gpus[3].entry, discover::query_nvml(library_)[3]);
}

TEST_F(plugin_nvml, lost_gpu_does_not_hide_others) {
  set_gpus(plain_gpus(3));
  SKIP_IF_REAL();
  put("lost", uuid_of_gpu(1) + "\n");
  const inventory inventory = take();
  ASSERT_EQ(inventory.gpus.size(), 2U);
  EXPECT_EQ(inventory.gpus[1].entry.uuid, uuid_of_gpu(2));
  EXPECT_THAT(inventory.left_out,
              ElementsAre("GPU 1: nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST (15)"));
  put("lost", uuid_of_gpu(0) + "\n" + uuid_of_gpu(1) + "\n" + uuid_of_gpu(2) + "\n");
  EXPECT_EQ(take().problem, "no GPU responds");
}

TEST(plugin_profile, is_named_by_driver_or_computed_from_slices) {
  EXPECT_EQ(profile_of_name("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "1g.5gb");
  EXPECT_EQ(profile_of_name("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), "1g.10gb+me");
  EXPECT_EQ(profile_of_name("X MIG 1c.3g.20gb"), "1c.3g.20gb");
  for (const char* none : {"NVIDIA H100",
                           "X MIG ",
                           "X MIG 3g",
                           "X MIG 3.20gb",
                           "X MIG 3g.xgb",
                           "X MIG 1x.3g.20gb",
                           "X MIG 1g.1c.3g.20gb"}) {
    EXPECT_EQ(profile_of_name(none), std::nullopt) << none;
  }
  constexpr std::uint64_t mib = 1ULL << 20U;
  // Total and instance sizes of A100 40 GB, A100 80 GB, H100 80 GB and H200.
  EXPECT_EQ(profile_of_slices(1, 1, 4864 * mib, 40960 * mib), "1g.5gb");
  EXPECT_EQ(profile_of_slices(2, 2, 9856 * mib, 40960 * mib), "2g.10gb");
  EXPECT_EQ(profile_of_slices(3, 3, 19968 * mib, 40960 * mib), "3g.20gb");
  EXPECT_EQ(profile_of_slices(7, 7, 40192 * mib, 40960 * mib), "7g.40gb");
  EXPECT_EQ(profile_of_slices(1, 1, 9728 * mib, 81920 * mib), "1g.10gb");
  EXPECT_EQ(profile_of_slices(1, 1, 20096 * mib, 81559 * mib), "1g.20gb");
  EXPECT_EQ(profile_of_slices(1, 3, 40448 * mib, 81559 * mib), "1c.3g.40gb");
  EXPECT_EQ(profile_of_slices(1, 1, 16384 * mib, 143771 * mib), "1g.18gb");
}

/// The reports of a monitor, in order.
class report_log {
 public:
  health_monitor::listener listener() {
    return {[this](const std::string& uuid, const gpu_health& now) {
              const std::lock_guard lock(mutex_);
              lines_.push_back(uuid + (now.healthy ? " healthy" : " " + now.reason));
              changed_.notify_all();
            },
            [this](const std::string& change) {
              const std::lock_guard lock(mutex_);
              lines_.push_back("layout: " + change);
              changed_.notify_all();
            },
            [this](const base::lost_device& device) {
              const std::lock_guard lock(mutex_);
              lines_.push_back("lost: " + device.uuid + " " + device.pci_address + " " +
                               base::text_of(device.loss));
              changed_.notify_all();
            }};
  }
  /// Waits for the line, starting after the last line found.
  [[nodiscard]] bool wait_for(const std::string& line) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      const auto match =
          std::find(lines_.begin() + static_cast<std::ptrdiff_t>(read_), lines_.end(), line);
      if (match == lines_.end()) {
        return false;
      }
      read_ = static_cast<std::size_t>(match - lines_.begin()) + 1;
      return true;
    });
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::size_t read_ = 0;
};

health_options quick() {
  health_options options;
  options.wait = 10ms;
  options.poll_interval = 30ms;
  options.quiet = 200ms;
  return options;
}

/// Waits until the monitor has polled once; it has subscribed to the GPUs' events by then.
bool wait_for_gpus(const health_monitor& monitor, std::size_t count) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (monitor.gpus().size() < count) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

TEST_F(plugin_nvml, only_critical_xids_are_reported_and_expire) {
  set_gpus(plain_gpus(2));
  SKIP_IF_REAL();
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 2));
  for (const char* number : {" 13", " 31", " 43", " 45", " 68", " 109"}) {
    event(uuid_of_gpu(0) + number);
  }
  event(uuid_of_gpu(1) + " 8");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " Xid 8"));
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " healthy"));
  EXPECT_EQ(reports.lines().size(), 2U);
  event(uuid_of_gpu(0) + " ecc");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " uncorrected memory error"));
  EXPECT_EQ(monitor.gpus().at(uuid_of_gpu(0)), (gpu_health{false, "uncorrected memory error"}));
  EXPECT_EQ(monitor.gpus().at(uuid_of_gpu(1)), (gpu_health{true, ""}));
}

/// NVML names the instance: its siblings and the GPU stay healthy.
TEST_F(plugin_nvml, error_of_one_instance_does_not_affect_its_siblings) {
  gpu_tree& tree = set_gpus({a100_three()});
  SKIP_IF_REAL();
  const auto instances = take().gpus.at(0).instances;
  ASSERT_EQ(instances.size(), 3U);
  const discover::mig_entry& hit = instances[1].entry;
  report_log reports;
  health_options options = quick();
  options.quiet = 1s;
  health_monitor monitor(options, reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 1));
  const std::string ids =
      " " + std::to_string(hit.gpu_instance) + " " + std::to_string(hit.compute_instance);
  event(uuid_of_gpu(0) + " 94" + ids);
  EXPECT_TRUE(reports.wait_for(hit.uuid + " Xid 94 (contained memory error)"));
  EXPECT_FALSE(monitor.gpus().at(hit.uuid).healthy);
  EXPECT_TRUE(monitor.gpus().at(uuid_of_gpu(0)).healthy);
  EXPECT_TRUE(reports.wait_for(hit.uuid + " healthy"));
  EXPECT_EQ(reports.lines().size(), 2U);
  // Ids of no instance: the error is the GPU's.
  event(uuid_of_gpu(0) + " 94 99 0");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " Xid 94 (contained memory error)"));
  // An instance that no longer exists is forgotten.
  event(uuid_of_gpu(0) + " 94" + ids);
  EXPECT_TRUE(reports.wait_for(hit.uuid + " Xid 94 (contained memory error)"));
  tree.replace({a100_seven()});
  EXPECT_TRUE(reports.wait_for("layout: " + uuid_of_gpu(0) + " has a different MIG layout"));
  EXPECT_EQ(monitor.gpus().count(hit.uuid), 0U);
}

TEST_F(plugin_nvml, lost_gpu_recovers_with_its_events) {
  set_gpus(plain_gpus(2));
  SKIP_IF_REAL();
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 2));
  event(uuid_of_gpu(1) + " 79");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " Xid 79 (the GPU has fallen off the bus)"));
  put("lost", uuid_of_gpu(1) + "\n");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " it does not respond: nvmlDeviceGetHandleByUUID: "
                                                "NVML_ERROR_GPU_IS_LOST (15)"));
  put("lost", "");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " healthy"));
  event(uuid_of_gpu(1) + " 8");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " Xid 8"));
}

/// Other failures leave the memory intact, or the driver ends those that use it.
TEST_F(plugin_nvml, memory_is_lost_with_the_gpu_only) {
  set_gpus(plain_gpus(2));
  SKIP_IF_REAL();
  const std::string address = take().gpus.at(1).entry.pci_address;
  put("recovery", uuid_of_gpu(0) + " 1\n");
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 2));
  event(uuid_of_gpu(1) + " 48");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " Xid 48 (uncorrectable memory error)"));
  event(uuid_of_gpu(1) + " ecc");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " uncorrected memory error"));
  EXPECT_THAT(reports.lines(), ::testing::Not(::testing::Contains(HasSubstr("lost: "))));
  const std::string lost = "lost: " + uuid_of_gpu(1) + " " + address + " ";
  event(uuid_of_gpu(1) + " 79");
  EXPECT_TRUE(reports.wait_for(lost + "Xid 79 (the GPU has fallen off the bus)"));
  event(uuid_of_gpu(1) + " 95");
  EXPECT_TRUE(reports.wait_for(lost + "Xid 95 (uncontained memory error)"));
  event(uuid_of_gpu(1) + " 140");
  EXPECT_TRUE(reports.wait_for(lost + "Xid 140 (unrecovered memory error)"));
  const std::string first = take().gpus.at(0).entry.pci_address;
  for (int round = 0; round < 2; ++round) {
    put("lost", uuid_of_gpu(0) + "\n");
    EXPECT_TRUE(
        reports.wait_for("lost: " + uuid_of_gpu(0) + " " + first + " the driver cannot reach it"))
        << round;
    put("lost", "");
    EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " the driver requests a reset of the GPU"));
  }
}

/// A reset erases the memory; that a GPU is healthy again does not.
TEST_F(plugin_nvml, observed_reset_loses_the_memory) {
  set_gpus(plain_gpus(2));
  SKIP_IF_REAL();
  const std::string lost = "lost: " + uuid_of_gpu(0) + " " + take().gpus.at(0).entry.pci_address;
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 2));
  put("recovery", uuid_of_gpu(0) + " 3\n");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " the driver requests draining of its "
                                                "peer-to-peer traffic"));
  put("recovery", uuid_of_gpu(0) + " 0\n");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " healthy"));
  EXPECT_THAT(reports.lines(), ::testing::Not(::testing::Contains(HasSubstr("lost: "))));
  for (const char* const action : {"1", "4"}) {
    put("recovery", uuid_of_gpu(0) + " " + action + "\n");
    ASSERT_TRUE(gpushm_testing::eventually(
        [&] { return !monitor.gpus().at(uuid_of_gpu(0)).healthy; }, timeout));
    put("recovery", uuid_of_gpu(0) + " 0\n");
    EXPECT_TRUE(reports.wait_for(lost + " it was reset")) << action;
  }
}

/// NVML names the instance of an error that its siblings do not notice.
TEST_F(plugin_nvml, memory_of_one_instance_is_lost_alone) {
  set_gpus({a100_three()});
  SKIP_IF_REAL();
  const discover::mig_entry hit = take().gpus.at(0).instances.at(1).entry;
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 1));
  event(uuid_of_gpu(0) + " 95 " + std::to_string(hit.gpu_instance) + " " +
        std::to_string(hit.compute_instance));
  EXPECT_TRUE(reports.wait_for("lost: " + hit.uuid + "  Xid 95 (uncontained memory error)"));
}

TEST_F(plugin_nvml, recovery_action_keeps_a_gpu_unhealthy) {
  set_gpus(plain_gpus(1));
  SKIP_IF_REAL();
  put("recovery", uuid_of_gpu(0) + " 1\n");
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " the driver requests a reset of the GPU"));
  put("recovery", "");
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(0) + " healthy"));
}

TEST_F(plugin_nvml, layout_changes_and_new_gpus_are_reported) {
  gpu_tree& tree = set_gpus({a100_three()});
  SKIP_IF_REAL();
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(monitor, 1));
  EXPECT_EQ(take().gpus.at(0).instances.size(), 3U);
  tree.replace({a100_seven()});
  EXPECT_TRUE(reports.wait_for("layout: " + uuid_of_gpu(0) + " has a different MIG layout"));
  EXPECT_EQ(take().gpus.at(0).instances.size(), 7U);
  tree.replace({a100_seven(), h100_mixed()});
  EXPECT_TRUE(reports.wait_for("layout: " + uuid_of_gpu(1) + " was added"));
  tree.replace({a100_seven()});
  EXPECT_TRUE(reports.wait_for(uuid_of_gpu(1) + " it does not respond: nvmlDeviceGetHandleByUUID: "
                                                "NVML_ERROR_NOT_FOUND (6)"));
}

TEST_F(plugin_nvml, late_driver_is_found) {
  // The environment is not changed while the monitor runs, because the monitor may read it.
  make_tree(plain_gpus(1));
  std::filesystem::rename(root_ / "gpus.conf", root_ / "gpus.conf.hidden");
  if (driver::nvml_library::try_instance() != nullptr) {
    GTEST_SKIP() << "NVML was already loaded in this process, or a real one exists";
  }
  EXPECT_THAT(take().problem, HasSubstr("load NVML"));
  report_log reports;
  health_monitor monitor(quick(), reports.listener());
  EXPECT_TRUE(monitor.gpus().empty());
  std::filesystem::rename(root_ / "gpus.conf.hidden", root_ / "gpus.conf");
  EXPECT_TRUE(reports.wait_for("layout: a driver is available"));
  ASSERT_TRUE(wait_for_gpus(monitor, 1));
  EXPECT_EQ(take().gpus.size(), 1U);
}

TEST_F(plugin_nvml, events_during_reregistration_are_kept) {
  set_gpus(plain_gpus(2));
  SKIP_IF_REAL();
  gpu_watch watch(*driver::nvml_library::try_instance());
  ASSERT_EQ(watch.poll().gpus.size(), 2U);
  ASSERT_TRUE(watch.subscribe({uuid_of_gpu(0)}));
  event(uuid_of_gpu(0) + " 79");
  event(uuid_of_gpu(0) + " 8");
  // As when another GPU is added.
  ASSERT_TRUE(watch.subscribe({uuid_of_gpu(0), uuid_of_gpu(1)}));
  event(uuid_of_gpu(1) + " 48");
  for (const auto& [gpu, xid] : {std::pair(0U, 79U), std::pair(0U, 8U), std::pair(1U, 48U)}) {
    gpu_event seen;
    ASSERT_EQ(watch.wait(2s, seen), gpu_watch::outcome::event) << xid;
    EXPECT_EQ(seen.uuid, uuid_of_gpu(gpu));
    EXPECT_EQ(seen.xid, xid);
  }
}

TEST_F(plugin_nvml, monitor_ends_despite_a_hanging_driver) {
  set_gpus(plain_gpus(1));
  SKIP_IF_REAL();
  report_log reports;
  auto monitor = std::make_unique<health_monitor>(quick(), reports.listener());
  ASSERT_TRUE(wait_for_gpus(*monitor, 1));
  EXPECT_LT(monitor->unresponsive_for(), 5s);
  put("hang", "");
  const auto hung = std::chrono::steady_clock::now();
  while (monitor->unresponsive_for() < 1s && std::chrono::steady_clock::now() - hung < timeout) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_GE(monitor->unresponsive_for(), 1s);
  const auto start = std::chrono::steady_clock::now();
  monitor.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, gpushm_testing::wait_limit(10s));
  EXPECT_TRUE(health_monitor::any_abandoned());
  // The thread continues when the driver responds, without reports.
  const std::size_t reports_before = reports.lines().size();
  std::filesystem::remove(root_ / "hang");
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(reports.lines().size(), reports_before);
}

TEST_F(plugin_nvml, monitor_stops_promptly) {
  set_gpus(plain_gpus(1));
  SKIP_IF_REAL();
  auto monitor = std::make_unique<health_monitor>(health_options{}, health_monitor::listener{});
  ASSERT_TRUE(wait_for_gpus(*monitor, 1));
  const auto start = std::chrono::steady_clock::now();
  monitor.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, gpushm_testing::wait_limit(10s));
}

}  // namespace
}  // namespace gpushm::device_plugin
