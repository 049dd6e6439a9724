// SPDX-License-Identifier: Apache-2.0
// gpushmd as a process, between a kubelet, an API server and fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.hpp"
#include "dra_world.hpp"
#include "gpushm/gpushm.hpp"
#include "process/deadline.hpp"
#include "process/programs.hpp"
#include "support/agent_node.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::claim_number;
using gpushm_testing::claim_object;
using gpushm_testing::claim_path;
using gpushm_testing::dra_answers;
using gpushm_testing::dra_claim;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::patience;
using gpushm_testing::stream;
using gpushm_testing::uid_of;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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
    return gpushm::client::connect(
        {.socket_path = node_->domain_directory(domain) + "/socket", .timeout = patience(5s)});
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

TEST_F(agent_process, registers_allocates_and_ends_well) {
  node_->start_kubelet();
  node_->start_agent({"--per-gpu-resources", "on"});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(node_->ask("/healthz"), "200 ok\n");
  EXPECT_THAT(
      node_->kubelet().resources(),
      ElementsAre("gpushm.dev/share", "nvidia.com/gpu", "nvidia.com/gpu-0", "nvidia.com/gpu-1"));
  const auto gpu = node_->kubelet().allocate("pod", "nvidia.com/gpu", 1);
  EXPECT_THAT(gpu.allocation.cdi_devices,
              ElementsAre(StartsWith("k8s.device-plugin.gpushm.dev/gpu=GPU-")));
  const auto share = node_->kubelet().allocate("pod", "gpushm.dev/share", 1);
  EXPECT_THAT(share.allocation.cdi_devices, ElementsAre("gpushm.dev/share=default"));
  // The documents name a hook that is there.
  const auto gpus = json::parse(content_of(node_->spec_directory() + "/gpushm-device-plugin.json"));
  EXPECT_EQ(gpus.at("kind"), "k8s.device-plugin.gpushm.dev/gpu");
  EXPECT_THAT(gpus.dump(), HasSubstr(node_->path("kubelet/plugins/gpushm.dev/gpushm-cdi-hook")));
  EXPECT_TRUE(fs::exists(node_->path("kubelet/plugins/gpushm.dev/gpushm-cdi-hook")));
  EXPECT_EQ(connect("default").broker().domain, "default");

  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(patience(20s)), exited(0)) << errors();
  EXPECT_FALSE(fs::exists(node_->domain_directory("default") + "/socket"));
  for (const auto& entry : fs::directory_iterator(node_->path("device-plugins"))) {
    EXPECT_EQ(entry.path().filename(), "kubelet.sock");
  }
}

TEST_F(agent_process, stays_small_and_idle_and_makes_no_cuda_context) {
  node_->start_kubelet();
  node_->start_agent({"--per-gpu-resources", "on"});
  ASSERT_TRUE(node_->wait_ready());
  static_cast<void>(node_->claims().prepare("gpushm.dev", {claim(1)}));
  static_cast<void>(node_->ask("/metrics"));
  const std::string maps = content_of("/proc/" + std::to_string(node_->agent().pid()) + "/maps");
  EXPECT_THAT(maps, HasSubstr("libnvidia-ml"));
  EXPECT_THAT(maps, Not(HasSubstr("libcuda")));
  const long private_kib = status_kilobytes("RssAnon");
  EXPECT_GT(private_kib, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(private_kib, 8 * 1024);
#endif
  RecordProperty("rss_anon_kib", std::to_string(private_kib));
  RecordProperty("rss_kib", std::to_string(status_kilobytes("VmRSS")));
}

TEST_F(agent_process, without_a_gpu_advertises_none_and_says_why) {
  node_->start_kubelet();
  // A machine without a driver: the fake's variables lead nowhere.
  node_->start_agent({"--driver-root", node_->path("nothing")});
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 0, 10s));
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("gpushm.dev/share", 64, 10s));
  node_->agent().wait_for_line(
      "no GPU is offered: find the driver's libraries", patience(10s), stream::err);
}

TEST_F(agent_process, waits_for_a_kubelet_that_comes_later_and_one_that_comes_again) {
  node_->start_agent();
  EXPECT_THAT(node_->ask("/readyz"), StartsWith("503 "));
  EXPECT_EQ(node_->ask("/healthz"), "200 ok\n");
  node_->start_kubelet();
  ASSERT_TRUE(node_->wait_ready());
  node_->stop_kubelet();
  node_->start_kubelet();
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 20s)) << errors();
  ASSERT_TRUE(node_->claims().wait_registered("gpushm.dev", patience(20s))) << errors();
}

TEST_F(agent_process, a_new_configuration_is_taken_over_and_a_bad_one_is_not) {
  const std::string file = node_->path("agent.yaml");
  const auto put = [&](const std::string& text) { std::ofstream(file) << text; };
  put("version: v1\n");
  node_->start_kubelet();
  node_->start_agent({"--config", file});
  ASSERT_TRUE(node_->wait_ready());
  put("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n"
      "      replicas: 3\n");
  node_->agent().kill(SIGHUP);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 6, 20s)) << errors();
  put("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n"
      "      replicas: many\n");
  node_->agent().kill(SIGHUP);
  node_->agent().wait_for_line(
      "agent.yaml:6:17.*the old settings stay", patience(10s), stream::err);
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 6, 1s));
  EXPECT_EQ(node_->ask("/healthz"), "200 ok\n");
}

TEST_F(agent_process, a_claim_is_a_domain_from_prepare_to_unprepare) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  const dra_answers prepared = node_->claims().prepare("gpushm.dev", {one});
  ASSERT_EQ(prepared.at(one.uid).error, "") << errors();
  const std::string domain = "claim-" + one.uid;
  {
    gpushm::client user = connect(domain);
    gpushm::segment made = user.create(
        "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    made.publish();
    EXPECT_EQ(node_->metric("gpushm_segments{domain=\"" + domain + "\"}"), 1);
    EXPECT_EQ(node_->metric("gpushm_dra_prepared_claims"), 1);
    const dra_answers ended = node_->claims().unprepare("gpushm.dev", {one});
    EXPECT_EQ(ended.at(one.uid).error, "");
  }
  EXPECT_FALSE(fs::exists(node_->domain_directory(domain)));
  EXPECT_EQ(node_->metric("gpushm_dra_prepared_claims"), 0);
}

TEST_F(agent_process, a_killed_agent_opens_its_claims_domains_again_before_it_registers) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  const dra_claim one = claim(1);
  ASSERT_EQ(node_->claims().prepare("gpushm.dev", {one}).at(one.uid).error, "");
  const std::string domain = "claim-" + one.uid;
  node_->agent().kill(SIGKILL);
  static_cast<void>(node_->agent().wait_exit(patience(10s)));
  EXPECT_THROW(static_cast<void>(gpushm::client::connect(
                   {.socket_path = node_->domain_directory(domain) + "/socket"})),
               gpushm::error);
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_EQ(connect(domain).broker().domain, domain);
  EXPECT_EQ(node_->claims().unprepare("gpushm.dev", {one}).at(one.uid).error, "");
  EXPECT_FALSE(fs::exists(node_->domain_directory(domain)));
}

TEST_F(agent_process, a_second_instance_takes_over_as_in_an_update) {
  node_->start_kubelet();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(patience(20s)), exited(0)) << errors();
  node_->start_agent();
  ASSERT_TRUE(node_->wait_ready());
  EXPECT_TRUE(node_->kubelet().wait_for_healthy("nvidia.com/gpu", 2, 10s));
}

TEST_F(agent_process, logs_objects_when_asked) {
  node_->start_kubelet();
  node_->start_agent({"--log-format", "json"});
  ASSERT_TRUE(node_->wait_ready());
  node_->agent().kill(SIGTERM);
  EXPECT_EQ(node_->agent().wait_exit(patience(20s)), exited(0));
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

gpushm_testing::run_result run_agent(std::vector<std::string> arguments) {
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushmd")};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return gpushm_testing::run_program(options, patience(20s));
}

TEST(agent_command, check_config_lists_what_is_wrong) {
  const gpushm_testing::temp_dir folder;
  const std::string file = folder / "a.yaml";
  std::ofstream(file) << "version: v1\nagent: {dra: {shareDevices: 0}, listen: off}\n";
  const auto wrong = run_agent({"check-config", "--config", file, "--gpus", "perhaps"});
  EXPECT_EQ(wrong.status, exited(1));
  EXPECT_EQ(wrong.out,
            file + ":2:29: agent.dra.shareDevices: \"0\" is no number from 1 to 128\n" +
                "--gpus: \"perhaps\" is neither on nor off (say on or off)\n");
  std::ofstream(file) << "version: v1\n";
  const auto right = run_agent({"check-config", "--config", file});
  EXPECT_EQ(right.status, exited(0));
  EXPECT_EQ(right.out, "the settings can be used\n");
}

TEST(agent_command, wrong_usage_is_told) {
  EXPECT_EQ(run_agent({"--no-such-flag"}).status, exited(2));
  const auto unusable = run_agent({"--share-devices", "1000"});
  EXPECT_EQ(unusable.status, exited(1));
  EXPECT_EQ(unusable.err,
            "gpushmd: read settings \"--share-devices\": \"1000\" is no number from 1 to 128\n");
  EXPECT_EQ(run_agent({"--version"}).status, exited(0));
}

TEST(agent_command, dra_without_the_broker_cannot_be) {
  const gpushm_testing::temp_dir folder;
  const auto result =
      run_agent({"--broker", "off", "--dra", "on", "--listen", "off", "--device-plugin", "off"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.err,
            "gpushmd: start the DRA driver: it needs the broker, which is off (say --broker on, or "
            "--dra off)\n");
}

}  // namespace
}  // namespace gpushm_tests
