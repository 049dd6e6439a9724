// SPDX-License-Identifier: Apache-2.0
// The whole DRA driver with a fake kubelet, real brokers and an API server in memory.
#include "kubernetes/dra/driver/driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/fake_kubelet/dra_kubelet.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using namespace std::chrono_literals;
using gpushm::dra::driver;
using gpushm::dra::driver_options;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr std::chrono::milliseconds timeout = 20s;

class counting_observer : public gpushm::base::operation_observer {
 public:
  void finished(std::string_view service,
                std::string_view operation,
                std::string_view outcome,
                std::chrono::nanoseconds /*took*/) noexcept override {
    const std::lock_guard lock(mutex_);
    std::string key(service);
    ++counts_[key.append(" ").append(operation).append(" ").append(outcome)];
  }
  [[nodiscard]] unsigned count(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(key);
    return found != counts_.end() ? found->second : 0;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, unsigned> counts_;
};

class dra_driver : public testing::Test {
 protected:
  driver_options options() {
    driver_options some;
    some.node_name = test_node;
    some.kubelet_root = dir_.path();
    some.cdi_directory = cdi_;
    some.share_devices = 8;
    some.boot_id = "boot-1";
    some.check_interval = 20ms;
    some.health_interval = 100ms;
    some.sweep_interval = 1h;
    some.api_check_delay = 0ms;
    some.api_check_interval = 20ms;
    return some;
  }
  dra_kubelet_options kubelet_options() {
    dra_kubelet_options some;
    some.root = dir_.path();
    some.delete_slices = [this](const std::string& node) {
      ++wipes_;
      for (const std::string& path : cluster_.paths(slices_path() + "/")) {
        const auto slice = cluster_.find(path);
        if (slice && (node.empty() || slice->at("spec").at("driver") == node)) {
          cluster_.erase(path);
        }
      }
    };
    some.health_retry = 200ms;
    return some;
  }
  void start() { driver_ = std::make_unique<driver>(options(), cluster_, domains_, &observer_); }
  void start_kubelet() { kubelet_ = std::make_unique<dra_kubelet>(kubelet_options()); }
  void start_all() {
    start_kubelet();
    start();
    ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  }
  dra_claim add_claim(unsigned number, const std::vector<test_result>& results = {{}}) {
    const claim_reference claim = claim_number(number);
    cluster_.put(claim_path(claim), claim_object(claim, results));
    return {claim.name_space, claim.name, claim.uid};
  }
  dra_response prepare(const dra_claim& claim) {
    return kubelet_->prepare(test_driver, {claim}).at(claim.uid);
  }
  /// The kubelet reports the registration to the driver before it adds the driver to its plugins.
  [[nodiscard]] bool kubelet_uses(const driver& driver) const {
    const auto plugin = kubelet_->plugin_of(test_driver);
    return plugin && plugin->endpoint() == driver.status().endpoint;
  }
  [[nodiscard]] std::optional<json> slice() const {
    return cluster_.find(slices_path() + "/node-a-gpushm.dev");
  }

  temp_dir dir_;
  std::string cdi_ = dir_ / "cdi";
  std::string run_ = dir_ / "run";
  std::atomic<unsigned> wipes_{0};
  memory_cluster cluster_;
  counting_observer observer_;
  std::unique_ptr<broker_domains> domains_owned_ = std::make_unique<broker_domains>(run_);
  broker_domains& domains_ = *domains_owned_;
  std::unique_ptr<driver> driver_;
  std::unique_ptr<dra_kubelet> kubelet_;
};

TEST_F(dra_driver, reports_whether_the_api_server_has_dra) {
  cluster_.set_versions({"v1alpha3"});
  cluster_.unreachable = true;
  start();
  ASSERT_TRUE(eventually([&] { return driver_->status().serving; }, timeout));
  EXPECT_EQ(driver_->status().api_served, std::nullopt);
  cluster_.unreachable = false;
  EXPECT_TRUE(eventually([&] { return driver_->status().api_served == false; }, timeout));
  cluster_.unreachable = true;  // what was known stays known
  cluster_.set_versions({"v1beta1"});
  const unsigned before = cluster_.discoveries;
  ASSERT_TRUE(eventually([&] { return cluster_.discoveries > before + 1; }, timeout));
  EXPECT_EQ(driver_->status().api_served, false);
  cluster_.unreachable = false;
  EXPECT_TRUE(eventually([&] { return driver_->status().api_served == true; }, timeout));
}

TEST_F(dra_driver, registers_all_versions_then_publishes) {
  start();
  ASSERT_TRUE(eventually([&] { return driver_->status().serving; }, timeout));
  EXPECT_FALSE(driver_->status().registered);
  EXPECT_EQ(slice(), std::nullopt);
  start_kubelet();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  const dra_registration registration = kubelet_->registrations().at(0);
  EXPECT_EQ(registration.error, "");
  EXPECT_EQ(registration.service, "v1.DRAPlugin");
  EXPECT_THAT(registration.supported,
              ElementsAre("v1.DRAPlugin",
                          "v1beta1.DRAPlugin",
                          "v1.DRAResourceHealth",
                          "v1alpha1.DRAResourceHealth"));
  EXPECT_THAT(registration.endpoint,
              AllOf(StartsWith(dir_ / "plugins/gpushm.dev/dra-"), EndsWith(".sock")));
  ASSERT_TRUE(eventually([&] { return driver_->status().published; }, timeout));
  EXPECT_TRUE(driver_->status().registered);
  EXPECT_EQ(driver_->status().problem, "");
  EXPECT_EQ(driver_->status().endpoint, registration.endpoint);
  EXPECT_THAT(slice()->at("spec").at("devices"), SizeIs(8));
  EXPECT_GE(observer_.count("dra PublishResourceSlice ok"), 1U);
}

TEST_F(dra_driver, prepared_claim_is_usable_by_clients) {
  start_all();
  const dra_claim claim = add_claim(1,
                                    {{.request = "gpu", .driver = "gpu.nvidia.com"},
                                     {.request = "share", .device = "share-3", .share_id = "s-1"}});
  const dra_response response = prepare(claim);
  EXPECT_EQ(response.error, "");
  const dra_device expected{
      {"share"}, test_node, "share-3", {"gpushm.dev/claim=claim-" + claim.uid + "-share-3"}, "s-1"};
  EXPECT_THAT(response.devices, ElementsAre(expected));
  gpushm::connect_options connecting;
  connecting.socket_path = run_ + "/claim-" + claim.uid + "/socket";
  connecting.timeout = 5s;
  EXPECT_NO_THROW((void)gpushm::client::connect(connecting));
  EXPECT_EQ(driver_->status().claims, 1U);
  EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
  EXPECT_THAT(names_in(run_), IsEmpty());
  EXPECT_THAT(names_in(cdi_), IsEmpty());
  EXPECT_EQ(observer_.count("dra NodePrepareResources ok"), 1U);
  EXPECT_EQ(observer_.count("dra NodeUnprepareResources ok"), 1U);
}

TEST_F(dra_driver, v1beta1_kubelet_gets_devices_without_share_id) {
  dra_kubelet_options older = kubelet_options();
  older.services = {"v1beta1.DRAPlugin"};
  kubelet_ = std::make_unique<dra_kubelet>(older);
  start();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  EXPECT_EQ(kubelet_->plugin_of(test_driver)->service(), "v1beta1.DRAPlugin");
  const dra_claim claim = add_claim(1, {{.share_id = "s-1"}});
  const dra_response response = prepare(claim);
  EXPECT_EQ(response.error, "");
  ASSERT_EQ(response.devices.size(), 1U);
  EXPECT_EQ(response.devices[0].share_id, std::nullopt);
  EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
}

TEST_F(dra_driver, each_claim_in_a_call_has_its_own_error) {
  start_all();
  const dra_claim good = add_claim(1);
  const dra_claim gone{"default", "claim-2", uid_of(2)};
  const dra_claim invalid{"default", "claim-3", "../x"};
  const dra_claim other = add_claim(4, {{.device = "share-4"}});
  dra_responses responses = kubelet_->prepare(test_driver, {good, gone, invalid, other});
  EXPECT_EQ(responses.at(good.uid).error, "");
  EXPECT_EQ(responses.at(gone.uid).error,
            "prepare claim \"default/claim-2\": the claim no longer exists on the API server (pods "
            "that use it cannot start until it is recreated)");
  EXPECT_EQ(responses.at(invalid.uid).error,
            "check claim \"default/claim-3\": the UID \"../x\" is not valid");
  EXPECT_EQ(responses.at(other.uid).error, "");
  EXPECT_THAT(names_in(run_), ElementsAre("claim-" + uid_of(1), "claim-" + uid_of(4)));
  responses = kubelet_->unprepare(test_driver, {good, gone, invalid, other});
  EXPECT_THAT(responses, SizeIs(4));
  for (const auto& [uid, response] : responses) {
    EXPECT_EQ(response.error, "") << uid;
  }
  EXPECT_THAT(names_in(run_), IsEmpty());
  EXPECT_EQ(observer_.count("dra NodePrepareResources gone_or_replaced"), 1U);
}

TEST_F(dra_driver, parallel_calls_all_succeed) {
  start_all();
  std::vector<dra_claim> claims;
  for (unsigned number = 0; number < 8; ++number) {
    claims.push_back(add_claim(number, {{.device = "share-" + std::to_string(number)}}));
  }
  const auto plugin = kubelet_->plugin_of(test_driver);
  std::atomic<unsigned> good{0};
  {
    std::vector<std::jthread> callers;
    for (unsigned round = 0; round < 16; ++round) {
      callers.emplace_back([&, round] {
        const dra_claim& claim = claims.at(round % claims.size());
        const auto responses = call_prepare(plugin->channel(), "v1.DRAPlugin", {claim}, timeout);
        good += responses.at(claim.uid).error.empty() ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(good, 16U);
  EXPECT_EQ(driver_->status().claims, 8U);
}

TEST_F(dra_driver, only_unknown_claims_wait_for_a_slow_server) {
  start_all();
  const dra_claim ended = add_claim(100);
  const dra_claim known = add_claim(101, {{.device = "share-1"}});
  prepare(ended);
  const dra_response first = prepare(known);
  const auto channel = kubelet_->plugin_of(test_driver)->channel();
  cluster_.hold_gets();
  {
    std::vector<std::jthread> callers;
    for (unsigned number = 0; number < 8; ++number) {
      callers.emplace_back([&, claim = add_claim(number)] {
        EXPECT_EQ(
            call_prepare(channel, "v1.DRAPlugin", {claim}, scaled_timeout(60s)).at(claim.uid).error,
            "");
      });
    }
    EXPECT_TRUE(eventually([&] { return cluster_.held_gets() >= 4; }, timeout));
    EXPECT_EQ(kubelet_->unprepare(test_driver, {ended}).at(ended.uid).error, "");
    EXPECT_EQ(call_prepare(channel, "v1.DRAPlugin", {known}, timeout).at(known.uid), first);
    EXPECT_EQ(driver_->status().claims, 1U);
    cluster_.answer_gets();
  }
  EXPECT_EQ(driver_->status().claims, 9U);
}

TEST_F(dra_driver, cancelled_calls_are_not_worked_off) {
  start_all();
  const auto channel = kubelet_->plugin_of(test_driver)->channel();
  unsigned number = 0;
  // The driver learns of a cancellation some time after the kubelet's call has returned.
  EXPECT_TRUE(eventually(
      [&] {
        const dra_claim cancelled = add_claim(++number);
        cluster_.hold_gets();
        {
          std::vector<std::jthread> callers;
          for (unsigned busy = 0; busy < 4; ++busy) {
            callers.emplace_back([&, claim = add_claim(++number)] {
              static_cast<void>(
                  call_prepare(channel, "v1.DRAPlugin", {claim}, scaled_timeout(60s)));
            });
          }
          EXPECT_TRUE(eventually([&] { return cluster_.held_gets() == 4; }, timeout));
          static_cast<void>(call_prepare(channel, "v1.DRAPlugin", {cancelled}, 50ms));
          cluster_.answer_gets();
        }
        // Queued behind the cancelled call.
        const dra_claim last = add_claim(++number);
        static_cast<void>(call_prepare(channel, "v1.DRAPlugin", {last}, timeout));
        return !std::filesystem::exists(run_ + "/claim-" + cancelled.uid);
      },
      timeout));
}

TEST_F(dra_driver, prepare_is_cached_until_kubelet_restart) {
  start_all();
  const dra_claim claim = add_claim(1);
  const dra_response first = prepare(claim);
  EXPECT_EQ(prepare(claim), first);
  EXPECT_EQ(observer_.count("dra NodePrepareResources ok"), 1U);
  kubelet_.reset();
  start_kubelet();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  EXPECT_EQ(prepare(claim), first);
  EXPECT_EQ(observer_.count("dra NodePrepareResources ok"), 2U);
}

TEST_F(dra_driver, slices_deleted_by_starting_kubelet_are_restored) {
  start_all();
  ASSERT_TRUE(eventually([&] { return slice().has_value(); }, timeout));
  const json first = slice()->at("metadata").at("uid");
  kubelet_.reset();
  start_kubelet();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  ASSERT_TRUE(eventually(
      [&] {
        const auto now = slice();
        return now && now->at("metadata").at("uid") != first;
      },
      timeout));
  EXPECT_GE(wipes_, 2U);
}

TEST_F(dra_driver, stop_leaves_slices_to_the_kubelet) {
  dra_kubelet_options quick = kubelet_options();
  quick.wipe_delay = 300ms;
  kubelet_ = std::make_unique<dra_kubelet>(quick);
  start();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  ASSERT_TRUE(eventually([&] { return driver_->status().published; }, timeout));
  driver_->stop();
  EXPECT_TRUE(slice().has_value());
  EXPECT_FALSE(driver_->status().serving);
  EXPECT_THAT(names_in(dir_ / "plugins_registry"), IsEmpty());
  ASSERT_TRUE(eventually([&] { return !slice().has_value(); }, timeout));
  EXPECT_EQ(kubelet_->plugins_of(test_driver), 0U);
}

TEST_F(dra_driver, health_is_sent_immediately_and_repeatedly) {
  start_all();
  const auto plugin = kubelet_->plugin_of(test_driver);
  EXPECT_EQ(plugin->health_service(), "v1.DRAResourceHealth");
  ASSERT_TRUE(eventually([&] { return plugin->health_messages() >= 3; }, timeout));
  EXPECT_EQ(plugin->health_attempts(), 1U);
  const auto health = plugin->health();
  ASSERT_EQ(health.size(), 8U);
  EXPECT_EQ(health.at("node-a/share-0").status, 1);
  EXPECT_NEAR(static_cast<double>(health.at("node-a/share-7").updated_s),
              static_cast<double>(std::time(nullptr)),
              10.0);
}

TEST_F(dra_driver, kubelet_of_health_v1alpha1_gets_the_same) {
  dra_kubelet_options older = kubelet_options();
  older.health_services = {"v1alpha1.DRAResourceHealth"};
  kubelet_ = std::make_unique<dra_kubelet>(older);
  start();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  const auto plugin = kubelet_->plugin_of(test_driver);
  EXPECT_EQ(plugin->health_service(), "v1alpha1.DRAResourceHealth");
  ASSERT_TRUE(eventually([&] { return plugin->health_messages() >= 2; }, timeout));
  ASSERT_EQ(plugin->health().size(), 8U);
  EXPECT_EQ(plugin->health().at("node-a/share-7").status, 1);
}

TEST_F(dra_driver, claim_without_domain_makes_device_unhealthy) {
  start_all();
  prepare(add_claim(1, {{.device = "share-5"}}));
  driver_.reset();
  domains_owned_.reset();
  // A file replaces the directory of the domains.
  std::filesystem::remove_all(run_);
  write_text(run_, "");
  broker_domains again(run_);
  driver_ = std::make_unique<driver>(options(), cluster_, again, &observer_);
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  ASSERT_TRUE(eventually(
      [&] {
        const auto plugin = kubelet_->plugin_of(test_driver);
        return plugin && plugin->health_messages() > 0 &&
               plugin->health().at("node-a/share-5").status == 2;
      },
      timeout));
  const auto health = kubelet_->plugin_of(test_driver)->health();
  EXPECT_THAT(health.at("node-a/share-5").message, StartsWith("open claim again"));
  EXPECT_EQ(health.at("node-a/share-4").status, 1);
  driver_.reset();
}

TEST_F(dra_driver, domains_are_reopened_before_registration) {
  start_all();
  const dra_claim claim = add_claim(1);
  prepare(claim);
  driver_.reset();
  domains_owned_ = std::make_unique<broker_domains>(run_);
  cluster_.unreachable = true;
  driver_ = std::make_unique<driver>(options(), cluster_, *domains_owned_, &observer_);
  const auto before = kubelet_->registrations().size();
  ASSERT_TRUE(eventually([&] { return kubelet_->registrations().size() > before; }, timeout));
  gpushm::connect_options connecting;
  connecting.socket_path = run_ + "/claim-" + claim.uid + "/socket";
  connecting.timeout = 0s;
  EXPECT_NO_THROW((void)gpushm::client::connect(connecting));
  // The kubelet notes a registration before it has finished with it.
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
  driver_.reset();
}

TEST_F(dra_driver, serves_again_when_either_socket_disappears) {
  start_all();
  const dra_claim claim = add_claim(1);
  for (const std::string folder : {"plugins_registry", "plugins/gpushm.dev"}) {
    const std::string endpoint = driver_->status().endpoint;
    for (const std::string& name : names_in(dir_ / folder)) {
      if (name.ends_with(".sock")) {
        std::filesystem::remove(dir_ / (folder + "/" + name));
      }
    }
    ASSERT_TRUE(eventually([&] { return driver_->status().endpoint != endpoint; }, timeout))
        << folder;
    ASSERT_TRUE(eventually(
        [&] {
          const auto plugin = kubelet_->plugin_of(test_driver);
          return plugin && plugin->endpoint() == driver_->status().endpoint &&
                 plugin->is_connected() && kubelet_->plugins_of(test_driver) == 1;
        },
        timeout));
    EXPECT_EQ(prepare(claim).error, "");
    EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
    EXPECT_THAT(names_in(dir_ / "plugins_registry"), SizeIs(1));
  }
}

TEST_F(dra_driver, only_stale_sockets_are_removed) {
  std::filesystem::create_directories(dir_ / "plugins_registry");
  const auto bind_at = [](const std::string& path, bool listens) {
    gpushm::base::unique_fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(&address.sun_path[0], path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listens ? ::listen(socket.get(), 1) : 0, 0);
    return socket;
  };
  const std::string registry = dir_ / "plugins_registry";
  bind_at(registry + "/gpushm.dev-1-dead-1-reg.sock", false).reset();
  const auto alive = bind_at(registry + "/gpushm.dev-1-alive-1-reg.sock", true);
  bind_at(registry + "/gpu.nvidia.com-reg.sock", false).reset();
  start();
  ASSERT_TRUE(eventually([&] { return driver_->status().serving; }, timeout));
  EXPECT_THAT(names_in(registry),
              testing::UnorderedElementsAre("gpu.nvidia.com-reg.sock",
                                            "gpushm.dev-1-alive-1-reg.sock",
                                            HasSubstr("gpushm.dev-" + std::to_string(::getpid()))));
}

TEST_F(dra_driver, rejected_registration_is_reported_with_reason) {
  dra_kubelet_options refusing = kubelet_options();
  refusing.refusal = "driver names must be longer";
  kubelet_ = std::make_unique<dra_kubelet>(refusing);
  start();
  ASSERT_TRUE(eventually([&] { return !driver_->status().problem.empty(); }, timeout));
  EXPECT_EQ(driver_->status().problem,
            "the kubelet rejects the registration: driver names must be longer");
  EXPECT_FALSE(driver_->status().registered);
  EXPECT_EQ(slice(), std::nullopt);
}

TEST_F(dra_driver, newer_checkpoint_blocks_serving_until_removed) {
  std::filesystem::create_directories(dir_ / "plugins/gpushm.dev");
  const std::string path = dir_ / "plugins/gpushm.dev/dra-checkpoint.json";
  write_text(path, R"({"version":2})");
  start_kubelet();
  start();
  ASSERT_TRUE(eventually([&] { return !driver_->status().problem.empty(); }, timeout));
  EXPECT_THAT(driver_->status().problem,
              HasSubstr("it has version 2, but this gpushm reads version 1"));
  EXPECT_FALSE(driver_->status().serving);
  EXPECT_EQ(kubelet_->plugin_of(test_driver), nullptr);
  std::filesystem::remove(path);
  EXPECT_TRUE(kubelet_->wait_registered(test_driver, timeout));
}

TEST_F(dra_driver, second_instance_takes_over_when_first_stops) {
  start_all();
  const dra_claim claim = add_claim(1);
  const dra_response first = prepare(claim);
  broker_domains second_domains(run_);
  driver second(options(), cluster_, second_domains);
  ASSERT_TRUE(eventually([&] { return !second.status().problem.empty(); }, timeout));
  EXPECT_THAT(second.status().problem, HasSubstr("another agent prepares claims on this node"));
  EXPECT_EQ(kubelet_->plugins_of(test_driver), 1U);
  driver_.reset();
  domains_owned_.reset();
  ASSERT_TRUE(eventually([&] { return second.status().registered; }, timeout));
  ASSERT_TRUE(eventually([&] { return kubelet_uses(second); }, timeout));
  EXPECT_EQ(second.status().claims, 1U);
  EXPECT_TRUE(slice().has_value());
  EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
}

TEST_F(dra_driver, sweep_runs_at_start) {
  start_all();
  prepare(add_claim(1));
  driver_.reset();
  cluster_.erase(claim_path(claim_number(1)));
  start();
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  ASSERT_TRUE(
      eventually([&] { return names_in(run_).empty() && names_in(cdi_).empty(); }, timeout));
  EXPECT_GE(observer_.count("dra Sweep ok"), 1U);
}

TEST_F(dra_driver, sweeps_rarely_ask_the_server) {
  start_all();
  prepare(add_claim(1));
  prepare(add_claim(2, {{.device = "share-1"}}));
  driver_.reset();
  driver_options often = options();
  often.sweep_interval = 20ms;
  cluster_.unreachable = true;
  driver_ = std::make_unique<driver>(often, cluster_, domains_, &observer_);
  ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  ASSERT_TRUE(
      eventually([&] { return observer_.count("dra Sweep peer_unreachable") >= 2; }, timeout));
  // A failed one is repeated with the next sweep.
  cluster_.erase(claim_path(claim_number(1)));
  cluster_.unreachable = false;
  ASSERT_TRUE(eventually([&] { return driver_->status().claims == 1; }, timeout));
  const unsigned done = observer_.count("dra Sweep ok");
  ASSERT_TRUE(eventually([&] { return observer_.count("dra Sweep ok") >= done + 2; }, timeout));
  const unsigned gets = cluster_.gets - cluster_.node_gets;
  ASSERT_TRUE(eventually([&] { return observer_.count("dra Sweep ok") >= done + 7; }, timeout));
  EXPECT_EQ(cluster_.gets - cluster_.node_gets, gets);
}

TEST_F(dra_driver, leaks_no_descriptor) {
  start_all();
  // The first round creates the objects that gRPC keeps until the process exits.
  const auto round = [&] {
    driver_.reset();
    start();
    ASSERT_TRUE(eventually([&] { return driver_->status().registered; }, timeout));
    const dra_claim claim = add_claim(1);
    ASSERT_TRUE(eventually([&] { return kubelet_uses(*driver_); }, timeout));
    EXPECT_EQ(prepare(claim).error, "");
    EXPECT_EQ(kubelet_->unprepare(test_driver, {claim}).at(claim.uid).error, "");
    driver_.reset();
    ASSERT_TRUE(eventually([&] { return kubelet_->plugins_of(test_driver) == 0; }, timeout));
  };
  round();
  kubelet_.reset();
  std::size_t before = 0;
  ASSERT_TRUE(eventually(
      [&] {
        const std::size_t now = total(count_descriptors(::getpid()));
        return std::exchange(before, now) == now;
      },
      timeout));
  for (int count = 0; count < 5; ++count) {
    start_kubelet();
    round();
    kubelet_.reset();
  }
  EXPECT_TRUE(eventually([&] { return total(count_descriptors(::getpid())) <= before; }, timeout))
      << to_text(count_descriptors(::getpid()));
}

TEST(dra_driver_options, invalid_values_are_rejected) {
  memory_cluster cluster;
  directory_domains domains("/nowhere");
  const auto failure_of = [&](const driver_options& options) -> std::string {
    try {
      const driver subject(options, cluster, domains);
    } catch (const gpushm::error& failure) {
      return failure.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(failure_of({}),
            "start DRA driver \"gpushm.dev\": the node has no name (pass --node-name NAME, or set "
            "NODE_NAME from the pod's spec.nodeName"
            ")");
  driver_options many;
  many.node_name = "a";
  many.share_devices = 129;
  EXPECT_EQ(failure_of(many),
            "start DRA driver \"gpushm.dev\": 129 devices cannot be published (pass "
            "--share-devices N with 1 to 128"
            ")");
}

}  // namespace
}  // namespace gpushm_testing
