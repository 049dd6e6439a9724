// SPDX-License-Identifier: Apache-2.0
// gpushmd as a process, with a kubelet, an API server and fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files/sanitizers.hpp"
#include "base/text/text.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/agent_node/agent_node.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::claim_number;
using gpushm_testing::claim_object;
using gpushm_testing::claim_path;
using gpushm_testing::dra_claim;
using gpushm_testing::dra_responses;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::scaled_timeout;
using gpushm_testing::stream;
using gpushm_testing::uid_of;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

gpushm_testing::run_result run_agent(const std::vector<std::string>& arguments) {
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushmd")};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return gpushm_testing::run_program(options, scaled_timeout(20s));
}

class agent_process : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_node(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    machine_ = std::make_unique<cdi_machine>(false);
    node_ = std::make_unique<agent_node>(*machine_);
  }

  [[nodiscard]] dra_claim claim(unsigned number, const std::string& node = node_name) {
    const auto reference = claim_number(number);
    gpushm_testing::test_result result;
    result.pool = node;
    result.device = "share-" + std::to_string(number);
    node_->api().put(claim_path(reference), claim_object(reference, {result}));
    return {reference.name_space, reference.name, reference.uid};
  }
  [[nodiscard]] gpushm::client connect(const std::string& domain) const {
    return gpushm::client::connect({.socket_path = node_->domain_directory(domain) + "/socket",
                                    .timeout = scaled_timeout(5s)});
  }
  // "Rss…: 1234 kB" of the agent.
  [[nodiscard]] long status_kilobytes(const std::string& field) {
    const std::string text =
        content_of("/proc/" + std::to_string(node_->agent().pid()) + "/status");
    const auto value = gpushm::base::field(text, field);
    return value ? std::stol(std::string(*value)) : -1;
  }
  [[nodiscard]] std::string errors() { return node_->agent().text(stream::err); }

  std::unique_ptr<cdi_machine> machine_;
  std::unique_ptr<agent_node> node_;
};

TEST_F(agent_process, registers_allocates_and_exits) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  EXPECT_THAT(node_->kubelet().resources(), ElementsAre("gpushm.dev/share", "nvidia.com/gpu"));
  const auto gpu = node_->kubelet().allocate("pod", "nvidia.com/gpu", 1);
  EXPECT_THAT(gpu.allocation.cdi_devices,
              ElementsAre(StartsWith("k8s.device-plugin.gpushm.dev/gpu=GPU-")));
  const auto share = node_->kubelet().allocate("pod", "gpushm.dev/share", 1);
  EXPECT_THAT(share.allocation.cdi_devices, ElementsAre("gpushm.dev/share=default"));
  // The documents name an existing hook.
  const auto gpus = json::parse(content_of(node_->spec_directory() + "/gpushm-device-plugin.json"));
  EXPECT_EQ(gpus.at("kind"), "k8s.device-plugin.gpushm.dev/gpu");
  EXPECT_THAT(gpus.dump(), HasSubstr(node_->path("kubelet/plugins/gpushm.dev/gpushm-cdi-hook")));
  EXPECT_TRUE(fs::exists(node_->path("kubelet/plugins/gpushm.dev/gpushm-cdi-hook")));
  EXPECT_EQ(connect("default").broker().domain, "default");

  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(20s)), exited(0)) << errors();
  // The broker is another process.
  EXPECT_EQ(connect("default").broker().domain, "default");
  for (const auto& entry : fs::directory_iterator(node_->path("device-plugins"))) {
    EXPECT_EQ(entry.path().filename(), "kubelet.sock");
  }
}

TEST_F(agent_process, offers_domains_to_unchanged_programs) {
  const gpushm_testing::temp_dir source;
  for (const char* const name : {"libgpushm-ipc.so", "libgpushm.so.1"}) {
    std::ofstream(source / name) << name;
  }
  node_->start_kubelet();
  node_->start_agent({"--ipc", "on", "--ipc-source", source.path()});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_THAT(node_->kubelet().resources(),
              ElementsAre("gpushm.dev/ipc", "gpushm.dev/share", "nvidia.com/gpu"));
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/ipc", 64, 10s));
  const auto ipc = node_->kubelet().allocate("pod", "gpushm.dev/ipc", 1);
  EXPECT_THAT(ipc.allocation.cdi_devices, ElementsAre("gpushm.dev/ipc=default"));
  const auto document = json::parse(content_of(node_->spec_directory() + "/gpushm-ipc.json"));
  const json& edits = document.at("containerEdits");
  const std::string state = node_->path("kubelet/plugins/gpushm.dev");
  EXPECT_EQ(edits.at("mounts").at(0).at("hostPath"), state + "/ipc");
  EXPECT_EQ(edits.at("hooks").at(0).at("path"), state + "/gpushm-cdi-hook");
  EXPECT_EQ(content_of(state + "/ipc/libgpushm-ipc.so"), "libgpushm-ipc.so");
}

TEST_F(agent_process, per_gpu_resources_replace_whole_gpus) {
  node_->start_kubelet();
  node_->start_agent({"--per-gpu-resources", "on"});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/gpu-0", 16, 10s));
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/gpu-1", 16, 10s));
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 0, 10s));
  const auto gpu = node_->kubelet().allocate("pod", "gpushm.dev/gpu-0", 1);
  EXPECT_THAT(gpu.allocation.cdi_devices,
              ElementsAre(StartsWith("k8s.device-plugin.gpushm.dev/gpu=GPU-")));
}

TEST_F(agent_process, stays_small_and_creates_no_cuda_context) {
  node_->start_kubelet();
  node_->start_agent({"--per-gpu-resources", "on"});
  ASSERT_TRUE(node_->wait_ready());
  static_cast<void>(node_->claims().prepare("gpushm.dev", {claim(1)}));
  static_cast<void>(node_->http_get("/metrics"));
  const std::string maps = content_of("/proc/" + std::to_string(node_->agent().pid()) + "/maps");
  EXPECT_THAT(maps, HasSubstr("libnvidia-ml"));
  EXPECT_THAT(maps, Not(HasSubstr("libcuda")));
  const long private_kib = status_kilobytes("RssAnon");
  EXPECT_GT(private_kib, 0);
  if (!gpushm::base::under_sanitizer) {
    EXPECT_LE(private_kib, 8 * 1024);
  }
  RecordProperty("rss_anon_kib", std::to_string(private_kib));
  RecordProperty("rss_kib", std::to_string(status_kilobytes("VmRSS")));
}

TEST_F(agent_process, without_gpu_advertises_zero_and_logs_reason) {
  node_->start_kubelet();
  // A machine without a driver.
  node_->start_agent({"--driver-root", node_->path("nothing")});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 0, 10s));
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 10s));
  // Before or after the line for which start_agent waits.
  const std::string reason = "no GPU is offered: find the driver's libraries";
  if (errors().find(reason) == std::string::npos) {
    node_->agent().wait_for_line(reason, scaled_timeout(10s), stream::err);
  }
}

TEST_F(agent_process, registers_with_late_and_restarted_kubelet) {
  node_->start_agent();
  EXPECT_THAT(node_->http_get("/readyz"), StartsWith("503 "));
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  node_->start_kubelet();
  ASSERT_TRUE(node_->wait_ready());
  node_->stop_kubelet();
  node_->start_kubelet();
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 20s)) << errors();
  ASSERT_TRUE(node_->claims().wait_registered("gpushm.dev", scaled_timeout(20s))) << errors();
}

TEST_F(agent_process, reload_applies_valid_and_rejects_invalid_file) {
  const std::string file = node_->path("agent.yaml");
  const auto write_config = [&](const std::string& text) { std::ofstream(file) << text; };
  write_config("version: v1\n");
  node_->start_kubelet();
  node_->start_agent({"--config", file});
  ASSERT_TRUE(node_->wait_ready());
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n"
      "      replicas: 3\n");
  node_->agent().kill(SIGHUP);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 6, 20s)) << errors();
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n"
      "      replicas: many\n");
  node_->agent().kill(SIGHUP);
  node_->agent().wait_for_line(
      "agent.yaml:6:17.*keeping the old settings", scaled_timeout(10s), stream::err);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 6, 1s));
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
}

TEST_F(agent_process, changed_file_is_reloaded_without_signal) {
  // Like a mounted ConfigMap: the path contains a symbolic link that is replaced.
  const auto write_config = [&](const std::string& version, const std::string& text) {
    fs::create_directories(node_->path("etc/" + version));
    std::ofstream(node_->path("etc/" + version + "/config.yaml")) << text;
    fs::create_symlink(version, node_->path("etc/..data_tmp"));
    fs::rename(node_->path("etc/..data_tmp"), node_->path("etc/..data"));
  };
  write_config("..1", "version: v1\nagent: {devicePlugin: {shareReplicas: 5}}\n");
  fs::create_symlink("..data/config.yaml", node_->path("etc/config.yaml"));
  node_->start_kubelet();
  node_->start_agent({"--config", node_->path("etc/config.yaml")});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 5, 10s));
  write_config("..2", "version: v1\nagent: {devicePlugin: {shareReplicas: 7}}\n");
  fs::remove_all(node_->path("etc/..1"));
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 7, 20s)) << errors();
  write_config("..3", "version: v1\nagent: {devicePlugin: {shareReplicas: seven}}\n");
  node_->agent().wait_for_line("keeping the old settings", scaled_timeout(10s), stream::err);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 7, 1s));
}

TEST_F(agent_process, broker_settings_need_restart_and_are_logged) {
  const std::string file = node_->path("agent.yaml");
  const auto write_config = [&](const std::string& text) { std::ofstream(file) << text; };
  write_config("version: v1\n");
  node_->start_kubelet();
  node_->start_agent({"--config", file});
  ASSERT_TRUE(node_->wait_ready());
  const std::string shares = content_of(node_->spec_directory() + "/gpushm-share.json");
  write_config(
      "version: v1\nagent:\n  broker: {domains: [default, team-a], directory: /nowhere}\n"
      "  devicePlugin: {shareReplicas: 9}\n");
  node_->agent().kill(SIGHUP);
  // The flag --run-dir takes precedence.
  node_->agent().wait_for_line("changes to agent.broker.domains take effect at the next start",
                               scaled_timeout(10s),
                               stream::err);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 9, 20s)) << errors();
  // No resource refers to a domain that is not served.
  EXPECT_THAT(node_->kubelet().resources(), ElementsAre("gpushm.dev/share", "nvidia.com/gpu"));
  EXPECT_EQ(content_of(node_->spec_directory() + "/gpushm-share.json"), shares);
}

TEST_F(agent_process, fifo_as_config_file_does_not_block) {
  const std::string file = node_->path("agent.yaml");
  std::ofstream(file) << "version: v1\n";
  node_->start_kubelet();
  node_->start_agent({"--config", file});
  ASSERT_TRUE(node_->wait_ready());
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  node_->agent().kill(SIGHUP);
  node_->agent().wait_for_line(
      "it is not a regular file.*keeping the old settings", scaled_timeout(10s), stream::err);
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(10s)), exited(0)) << errors();
}

// ---- a driver that does not respond ----

TEST_F(agent_process, driver_hang_at_start_delays_neither_shares_nor_exit) {
  const std::string hang = machine_->fake().root() + "/hang";
  std::ofstream(hang).put('\n');
  node_->start_kubelet();
  node_->start_agent();
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 30s)) << errors();
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  EXPECT_THAT(node_->http_get("/readyz"), StartsWith("503 the device plugin has not planned yet"));
  static_cast<void>(connect("default"));
  // The GPUs are offered once the driver responds.
  fs::remove(hang);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 20s)) << errors();
  ASSERT_TRUE(node_->wait_ready());
}

TEST_F(agent_process, driver_hang_delays_no_request_reload_or_exit) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  std::ofstream(machine_->fake().root() + "/hang").put('\n');
  node_->agent().kill(SIGHUP);  // takes an inventory
  node_->agent().wait_for_line("reloaded the settings", scaled_timeout(10s), stream::err);
  const dra_claim one = claim(1);
  EXPECT_EQ(node_->claims().prepare("gpushm.dev", {one}).at(one.uid).error, "") << errors();
  EXPECT_EQ(node_->metric("gpushm_dra_prepared_claims"), 1);
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  std::this_thread::sleep_for(6s);  // the monitor polls the GPUs every five seconds
  const auto start = std::chrono::steady_clock::now();
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(12s)), exited(0)) << errors();
  EXPECT_LT(std::chrono::steady_clock::now() - start, scaled_timeout(12s));
  EXPECT_THAT(errors(), HasSubstr("abandoned the thread that watches the GPUs"));
}

TEST_F(agent_process, stopped_control_loop_fails_healthz) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  // Stops only its first thread.
  const pid_t loop = node_->agent().pid();
  if (::ptrace(PTRACE_SEIZE, loop, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "ptrace is not permitted";
  }
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, loop, nullptr, nullptr), 0);
  ASSERT_EQ(::waitpid(loop, nullptr, __WALL), loop);
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  const bool failed = eventually([&] { return node_->http_get("/healthz").starts_with("503"); },
                                 scaled_timeout(30s));
  EXPECT_TRUE(failed);
  EXPECT_THAT(node_->http_get("/healthz"), StartsWith("503 the control loop has not run for "));
  ASSERT_EQ(::ptrace(PTRACE_DETACH, loop, nullptr, nullptr), 0);
  EXPECT_TRUE(
      eventually([&] { return node_->http_get("/healthz") == "200 ok\n"; }, scaled_timeout(10s)));
}

// ---- a driver that is installed or replaced, and GPUs that are released ----

TEST_F(agent_process, driver_that_appears_in_its_root_is_used) {
  // As a driver container that mounts its root after the agent has started.
  const std::string root = node_->path("driver");
  fs::create_directory(root);
  node_->start_kubelet();
  node_->start_agent({"--driver-root", root});
  ASSERT_TRUE(node_->wait_ready());
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 0, 30s)) << errors();
  fs::copy(machine_->places().at(1),
           root + "-next",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::rename(root + "-next", root);  // which is empty
  node_->agent().wait_for_line(
      "the driver of this node has changed; the agent starts again", 60s, stream::err);
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 60s)) << errors();
  EXPECT_THAT(content_of(node_->spec_directory() + "/gpushm-device-plugin.json"),
              HasSubstr(root + "/usr/lib/x86_64-linux-gnu/libcuda.so.580.82.07"));
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(20s)), exited(0)) << errors();
}

TEST_F(agent_process, releases_gpus_while_the_file_exists) {
  const auto uses_nvml = [&] {
    return content_of("/proc/" + std::to_string(node_->agent().pid()) + "/maps")
               .find("libnvidia-ml") != std::string::npos;
  };
  const auto files_of_gpus = [&] {
    std::size_t count = 0;
    std::error_code failed;
    const std::string files = "/proc/" + std::to_string(node_->agent().pid()) + "/fd";
    for (const auto& each : fs::directory_iterator(files, failed)) {
      const std::string target = fs::read_symlink(each.path(), failed).string();
      count += target.starts_with(machine_->fake().root()) ? 1U : 0U;
    }
    return count;
  };
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 30s)) << errors();
  EXPECT_TRUE(eventually(uses_nvml, scaled_timeout(20s)));
  const std::string file = node_->path("kubelet/plugins/gpushm.dev/release-gpus");
  std::ofstream(file).put('\n');
  node_->agent().wait_for_line(
      "no GPU is offered: they are released while .*release-gpus exists", 60s, stream::err);
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 0, 60s)) << errors();
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 60s)) << errors();
  EXPECT_FALSE(uses_nvml());
  EXPECT_EQ(files_of_gpus(), 0U);
  EXPECT_FALSE(fs::exists(node_->spec_directory() + "/gpushm-device-plugin.json"));
  EXPECT_EQ(connect("default").broker().domain, "default");
  fs::remove(file);
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 60s)) << errors();
  EXPECT_TRUE(eventually(uses_nvml, scaled_timeout(20s)));
}

// ---- domains, and a kubelet without DRA ----

TEST_F(agent_process, unserved_domain_is_reported_and_others_work) {
  node_->start_broker();
  fs::create_directory_symlink("/tmp", node_->domain_directory("team-a"));
  node_->start_kubelet();
  node_->start_agent({"--domain", "default,team-a"});
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 20s)) << errors();
  EXPECT_EQ(connect("default").broker().domain, "default");
  EXPECT_THAT(node_->http_get("/readyz"), StartsWith("503 domain team-a is not served: "));
  EXPECT_EQ(node_->metric("gpushm_domain_serving{domain=\"default\"}"), 1);
  EXPECT_EQ(node_->metric("gpushm_domain_serving{domain=\"team-a\"}"), 0);
  fs::remove(node_->domain_directory("team-a"));
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(connect("team-a").broker().domain, "team-a");
}

TEST_F(agent_process, kubelet_without_dra_is_ready_and_logged) {
  node_->start_kubelet(false);
  node_->start_agent({"--gpus", "off"});
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 20s)) << errors();
  EXPECT_TRUE(eventually(
      [&] {
        return node_->http_get("/readyz").starts_with(
            "503 the DRA driver is not registered with the kubelet");
      },
      10s));
  node_->agent().wait_for_line(
      "but not the DRA driver: claims cannot be used", scaled_timeout(60s), stream::err);
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(node_->metric("gpushm_dra_registered"), 0);
  EXPECT_EQ(node_->metric("gpushm_dra_expected"), 0);
  EXPECT_EQ(node_->metric("gpushm_dra_api_served"), 1);
}

TEST_F(agent_process, cluster_without_dra_is_ready_and_logged) {
  node_->api().set_resource_versions({});
  node_->start_kubelet(false);
  node_->start_agent({"--gpus", "off", "--dra", "on"});
  EXPECT_TRUE(eventually([&] { return node_->metric("gpushm_dra_expected") == 1; }, 10s));
  node_->agent().wait_for_line(
      "serves no version of resource.k8s.io .*: claims cannot be used in this cluster",
      scaled_timeout(20s),
      stream::err);
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(node_->metric("gpushm_dra_registered"), 0);
  EXPECT_EQ(node_->metric("gpushm_dra_expected"), 0);
  EXPECT_EQ(node_->metric("gpushm_dra_api_served"), 0);
}

TEST_F(agent_process, claim_is_a_domain_until_unprepared) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  const dra_responses prepared = node_->claims().prepare("gpushm.dev", {one});
  ASSERT_EQ(prepared.at(one.uid).error, "") << errors();
  const std::string domain = "claim-" + one.uid;
  {
    gpushm::client user = connect(domain);
    gpushm::segment created = user.create(
        "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
    EXPECT_EQ(node_->metric("gpushm_segments{domain=\"" + domain + "\"}"), 1);
    EXPECT_EQ(node_->metric("gpushm_dra_prepared_claims"), 1);
    const dra_responses ended = node_->claims().unprepare("gpushm.dev", {one});
    EXPECT_EQ(ended.at(one.uid).error, "");
  }
  EXPECT_FALSE(fs::exists(node_->domain_directory(domain)));
  EXPECT_EQ(node_->metric("gpushm_dra_prepared_claims"), 0);
}

TEST_F(agent_process, domains_survive_a_killed_agent) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  ASSERT_EQ(node_->claims().prepare("gpushm.dev", {one}).at(one.uid).error, "");
  const std::string domain = "claim-" + one.uid;
  gpushm::client user = connect(domain);
  gpushm::segment created = user.create("w", {.size_bytes = 4'096, .device = "host"});
  created.publish();
  node_->agent().kill(SIGKILL);
  static_cast<void>(node_->agent().wait_exit(scaled_timeout(10s)));
  EXPECT_TRUE(connect(domain).try_open("w"));
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(connect(domain).try_open("w"));
  EXPECT_EQ(created.state(), gpushm::segment_state::live);
  EXPECT_EQ(node_->claims().unprepare("gpushm.dev", {one}).at(one.uid).error, "");
  EXPECT_FALSE(fs::exists(node_->domain_directory(domain)));
}

TEST_F(agent_process, segments_of_claims_survive_a_killed_broker) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  const dra_claim two = claim(2);
  for (const dra_claim& each : {one, two}) {
    ASSERT_EQ(node_->claims().prepare("gpushm.dev", {each}).at(each.uid).error, "");
  }
  gpushm::client user = connect("claim-" + one.uid);
  gpushm::segment created = user.create(
      "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
  created.publish();
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(node_->broker().kill());
    EXPECT_TRUE(connect("claim-" + one.uid).try_open("w"));
    EXPECT_FALSE(connect("claim-" + two.uid).try_open("w"));
    EXPECT_EQ(created.state(), gpushm::segment_state::live);
  }
  // A closed domain does not come back.
  EXPECT_EQ(node_->claims().unprepare("gpushm.dev", {one}).at(one.uid).error, "");
  EXPECT_EQ(created.state(), gpushm::segment_state::broker_gone);
  ASSERT_TRUE(node_->broker().kill());
  EXPECT_EQ(connect("claim-" + two.uid).broker().domain, "claim-" + two.uid);
  EXPECT_FALSE(fs::exists(node_->domain_directory("claim-" + one.uid)));
  EXPECT_EQ(node_->metric("gpushm_domain_serving{domain=\"claim-" + one.uid + "\"}"), -1);
}

TEST_F(agent_process, members_learn_that_a_gpu_is_lost) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  gpushm::client user = connect("default");
  const gpushm::segment host = user.create("h", {.size_bytes = 4'096, .device = "host"});
  auto member =
      gpushm_testing::child::start({.argv = {gpushm_testing::own_program("gpushm"),
                                             "create",
                                             "w",
                                             "--size",
                                             "1MiB",
                                             "--device",
                                             "0",
                                             "--hold",
                                             "--socket",
                                             node_->domain_directory("default") + "/socket"},
                                    .env = machine_->fake().environment()});
  ASSERT_NE(member.wait_for_line("^created ", 60s), "") << member.output().all_output();
  const std::string uuid = machine_->fake().gpus().front().uuid;
  std::ofstream events(machine_->fake().root() + "/events", std::ios::app);
  ASSERT_TRUE(eventually(
      [&] {
        events << uuid << " 79" << std::endl;  // the monitor may not have subscribed before
        return !member.running();
      },
      60s));
  EXPECT_FALSE(member.wait_exit(60s).success());
  EXPECT_THAT(member.text(stream::err), HasSubstr("its GPU was lost, and the memory with it"));
  EXPECT_EQ(host.state(), gpushm::segment_state::live);
  EXPECT_TRUE(user.list("w").empty());
  try {
    static_cast<void>(user.open("w"));
    ADD_FAILURE() << "opened";
  } catch (const gpushm::error& why) {
    EXPECT_THAT(why.what(), HasSubstr("Xid 79 (the GPU has fallen off the bus)"));
  }
}

/// Another device plugin offers the GPUs, or none does: the broker has segments on them anyway.
TEST_F(agent_process, agent_that_offers_no_gpus_reports_lost_ones) {
  node_->start_kubelet();
  node_->start_agent({"--gpus", "off"});
  ASSERT_TRUE(node_->wait_ready());
  auto member =
      gpushm_testing::child::start({.argv = {gpushm_testing::own_program("gpushm"),
                                             "create",
                                             "w",
                                             "--size",
                                             "1MiB",
                                             "--device",
                                             "0",
                                             "--hold",
                                             "--socket",
                                             node_->domain_directory("default") + "/socket"},
                                    .env = machine_->fake().environment()});
  ASSERT_NE(member.wait_for_line("^created ", 60s), "") << member.output().all_output();
  std::ofstream(machine_->fake().root() + "/lost") << machine_->fake().gpus().front().uuid << "\n";
  EXPECT_FALSE(member.wait_exit(60s).success());
  try {
    static_cast<void>(connect("default").open("w"));
    ADD_FAILURE() << "opened";
  } catch (const gpushm::error& why) {
    EXPECT_THAT(why.what(), HasSubstr("the driver cannot reach it"));
  }
}

TEST_F(agent_process, shares_are_unhealthy_while_no_broker_serves) {
  node_->start_kubelet();
  node_->start_agent({"--gpus", "off", "--share-grace", "1"});
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 30s)) << errors();
  static_cast<void>(node_->kubelet().allocate("running", "gpushm.dev/share", 1));
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  ASSERT_EQ(node_->claims().prepare("gpushm.dev", {one}).at(one.uid).error, "") << errors();
  node_->stop_broker();
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 0, 60s)) << errors();
  node_->agent().wait_for_line(
      "shares are unhealthy: domain default is not served: ", scaled_timeout(10s), stream::err);
  EXPECT_THROW(static_cast<void>(node_->kubelet().allocate("pod", "gpushm.dev/share", 1)),
               gpushm_testing::admission_error);
  EXPECT_EQ(node_->kubelet().resource("gpushm.dev/share").owners.size(), 1U);
  // Pods with claims can end.
  EXPECT_EQ(node_->claims().unprepare("gpushm.dev", {one}).at(one.uid).error, "") << errors();
  node_->start_broker();
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 60s)) << errors();
  static_cast<void>(node_->kubelet().allocate("pod", "gpushm.dev/share", 1));
}

TEST_F(agent_process, shares_stay_healthy_over_restarts_of_the_broker) {
  node_->start_kubelet();
  node_->start_agent({"--gpus", "off", "--share-grace", "600"});
  ASSERT_TRUE(node_->wait_ready());
  ASSERT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 30s)) << errors();
  const auto lists = node_->kubelet().resource("gpushm.dev/share").lists;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(node_->broker().kill());
    EXPECT_EQ(connect("default").broker().domain, "default");
  }
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(node_->kubelet().resource("gpushm.dev/share").lists, lists);
}

/// Broker and keeper dead together: the domains are there again, without their segments.
TEST_F(agent_process, domains_are_opened_again_after_a_loss) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  ASSERT_EQ(node_->claims().prepare("gpushm.dev", {one}).at(one.uid).error, "");
  const std::array domains{std::string("default"), "claim-" + one.uid};
  std::map<std::string, gpushm::segment> before;
  for (const std::string& each : domains) {
    auto to = connect(each);
    before.emplace(each, to.create("w", {.size_bytes = 4'096, .device = "host"}));
    before.at(each).publish();
  }
  const auto epoch = connect("claim-" + one.uid).broker().epoch;
  node_->stop_broker();
  EXPECT_TRUE(eventually([&] { return node_->http_get("/readyz").starts_with("503"); }, 20s));
  EXPECT_THAT(node_->http_get("/readyz"), HasSubstr("gpushm-brokerd"));
  EXPECT_EQ(node_->metric("gpushm_domain_serving{domain=\"default\"}"), 0);
  EXPECT_EQ(node_->http_get("/healthz"), "200 ok\n");
  node_->start_broker();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_NE(connect("claim-" + one.uid).broker().epoch, epoch);
  EXPECT_EQ(connect("default").broker().domain, "default");
  // The process that has them hands them back.
  for (const std::string& each : domains) {
    const gpushm::segment& lost = before.at(each);
    EXPECT_TRUE(eventually([&] { return lost.state() == gpushm::segment_state::live; }, 20s))
        << each;
    auto to = connect(each);
    EXPECT_EQ(to.stat("w").generation, lost.generation()) << each;
    EXPECT_EQ(node_->metric("gpushm_segments_handed_back_total{domain=\"" + each + "\"}"), 1);
    // A reference to it is never one to another segment.
    to.remove("w");
    auto again = to.create("w", {.size_bytes = 4'096, .device = "host"});
    again.publish();
    EXPECT_GT(again.generation(), lost.generation()) << each;
    EXPECT_EQ(lost.state(), gpushm::segment_state::removed);
  }
}

TEST_F(agent_process, second_instance_takes_over) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(20s)), exited(0)) << errors();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 10s));
}

TEST_F(agent_process, second_instance_at_the_same_time_is_refused) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const auto second = run_agent({"--kubelet-root", node_->path("kubelet"), "--listen", "off"});
  EXPECT_EQ(second.status, exited(1));
  EXPECT_THAT(second.err, HasSubstr("another agent is running on this node"));
}

TEST_F(agent_process, logs_json_objects) {
  node_->start_kubelet();
  node_->start_agent({"--log-format", "json"});
  ASSERT_TRUE(node_->wait_ready());
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(scaled_timeout(20s)), exited(0));
  std::size_t lines = 0;
  const std::string text = errors();
  for (const std::string_view line : gpushm::base::lines_of(text)) {
    const json parsed = json::parse(line, nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << line;
    EXPECT_TRUE(parsed.contains("time") && parsed.contains("level") && parsed.contains("message"))
        << line;
    ++lines;
  }
  EXPECT_GE(lines, 2U);
}

// ---- the command line ----

TEST(agent_command, check_config_lists_all_problems) {
  const gpushm_testing::temp_dir folder;
  const std::string file = folder / "a.yaml";
  std::ofstream(file) << "version: v1\nagent: {dra: {shareDevices: 0}, listen: off}\n";
  const auto wrong = run_agent({"check-config", "--config", file, "--gpus", "perhaps"});
  EXPECT_EQ(wrong.status, exited(1));
  EXPECT_EQ(wrong.out,
            file + ":2:29: agent.dra.shareDevices: \"0\" is not a number from 1 to 128\n" +
                "--gpus: \"perhaps\" is neither on nor off (use on or off)\n");
  std::ofstream(file) << "version: v1\n";
  const auto right = run_agent({"check-config", "--config", file});
  EXPECT_EQ(right.status, exited(0));
  EXPECT_EQ(right.out, "configuration OK\n");
}

TEST(agent_command, wrong_usage_is_reported) {
  EXPECT_EQ(run_agent({"--no-such-flag"}).status, exited(2));
  const auto unusable = run_agent({"--share-devices", "1000"});
  EXPECT_EQ(unusable.status, exited(1));
  EXPECT_EQ(unusable.err,
            "gpushmd: read settings \"--share-devices\": \"1000\" is not a number from 1 to 128\n");
  EXPECT_EQ(run_agent({"--version"}).status, exited(0));
}

TEST(agent_command, dra_without_broker_is_rejected) {
  const gpushm_testing::temp_dir folder;
  const auto result =
      run_agent({"--broker", "off", "--dra", "on", "--listen", "off", "--device-plugin", "off"});
  EXPECT_EQ(result.status, exited(1));
  // After the line with the version.
  EXPECT_THAT(result.err,
              EndsWith("gpushmd: start the DRA driver: the DRA driver needs the broker, which is "
                       "off (use --broker on, or --dra off)\n"));
}

}  // namespace
}  // namespace gpushm_tests
