// SPDX-License-Identifier: Apache-2.0
// Broker, producer and consumer, each as PID 1 of a separate container: private PID, IPC, network,
// UTS, mount and cgroup namespaces, no capabilities, different uids. They share only the domain's
// directory and, if there is one, the GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/container/container.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::stream;
using gpushm_testing::temp_dir;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

enum class memory : std::uint8_t { host, fake_gpu, real_gpu };

struct setting {
  const char* name;
  memory where;
  bool user_namespaces;
};
void PrintTo(const setting& chosen, std::ostream* to) {
  *to << chosen.name;
}

constexpr const char* domain_inside = "/run/gpushm/d/default";
constexpr std::uint64_t size_bytes = 3U << 20U;
constexpr uid_t broker_uid = 2001;
constexpr uid_t producer_uid = 1000;
constexpr uid_t consumer_uid = 3000;
const std::string segment_name = "isolated/segment";

class isolation : public ::testing::TestWithParam<setting> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers(GetParam().user_namespaces)) {
      GTEST_SKIP() << *reason;
    }
    if (GetParam().where == memory::real_gpu && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    if (GetParam().where == memory::fake_gpu) {
      fake_.emplace();
    }
    const auto owner = host_id(broker_uid);
    ASSERT_EQ(::chown(domain_.path().c_str(), owner, owner), 0);
  }

  [[nodiscard]] static std::string device() {
    return GetParam().where == memory::host ? "host" : "0";
  }
  [[nodiscard]] static std::string backend() {
    return GetParam().where == memory::host ? "host" : "cuda-vmm";
  }

  /// Each role has a user namespace with a separate range of ids, so that no role can name the ids
  /// of another.
  [[nodiscard]] static gpushm_testing::user_namespace ids_of(uid_t role) {
    return {100'000 + role * 100, 65'536};
  }
  [[nodiscard]] static uid_t host_id(uid_t role) {
    return GetParam().user_namespaces ? ids_of(role).first_host_id + role : role;
  }

  /// Starts `gpushm ARGUMENTS` in a new container.
  [[nodiscard]] container gpushm(uid_t role, std::vector<std::string> arguments) {
    container_options options;
    options.argv = std::move(arguments);
    gpushm_testing::use_own_program(options, "gpushm");
    options.uid = role;
    options.gid = role;
    if (GetParam().user_namespaces) {
      options.user_ns = ids_of(role);
    }
    // Read-only for clients: connecting changes nothing in the directory.
    options.mounts.push_back({domain_.path(), domain_inside, role == broker_uid, false});
    if (role != broker_uid) {
      add_gpu(options);
    }
    return container::start(options);
  }

  /// Not called for the broker, which needs neither a device node nor a driver.
  void add_gpu(container_options& options) {
    if (fake_) {
      options.mounts.push_back({fake_->root(), fake_->root(), true, true});
      for (const auto& variable : fake_->environment()) {
        options.env.push_back(variable);
      }
      if (node_withheld_) {
        options.env.emplace_back("GPUSHM_DEV_ROOT", fake_->make_dev_root("without", {}));
      }
    } else if (GetParam().where == memory::real_gpu) {
      std::vector<int> minors{gpushm_testing::nvidia_minors().front()};
      if (node_withheld_) {
        minors.clear();
      }
      gpushm_testing::allow_real_gpus(options, minors);
    }
  }

  [[nodiscard]] container serve() {
    std::vector<std::string> arguments{"serve", "--mode", "0666"};
    if (fake_) {
      arguments.emplace_back("--accept-fake-chunks");
    }
    auto broker = gpushm(broker_uid, std::move(arguments));
    broker.wait_for_line("^gpushm: serving", seconds(30));
    return broker;
  }
  [[nodiscard]] container produce(const std::string& lifetime) {
    return gpushm(producer_uid,
                  {"create",
                   segment_name,
                   "--size",
                   std::to_string(size_bytes),
                   "--device",
                   device(),
                   "--fill",
                   "0x5a",
                   "--lifetime",
                   lifetime,
                   "--metadata",
                   "table",
                   "--hold",
                   "--connect-timeout",
                   "60s"});
  }
  [[nodiscard]] container consume(const std::string& more = "--checksum") {
    return gpushm(
        consumer_uid,
        {"open", segment_name, "--timeout", "60s", "--connect-timeout", "60s", "--json", more});
  }

  static void expect_correct_data(container& consumer) {
    EXPECT_EQ(consumer.wait_exit(seconds(60)), exited(0)) << consumer.all_output();
    const auto text = consumer.text(stream::out);
    ASSERT_FALSE(text.empty()) << consumer.all_output();
    const auto opened = json::parse(text).at("opened");
    static const auto expected = crc32c_text(std::string(size_bytes, '\x5a'));
    EXPECT_EQ(opened.at("crc32c"), expected);
    EXPECT_EQ(opened.at("size_bytes"), size_bytes);
    EXPECT_EQ(opened.at("backend"), backend());
    EXPECT_EQ(opened.at("metadata_text"), "table");
  }

  /// Connects from outside as the node's root, to count the broker's segments and leases.
  [[nodiscard]] gpushm::client watch() const {
    return gpushm::client::connect({.socket_path = domain_ / "socket"});
  }
  [[nodiscard]] static bool becomes_empty(gpushm::client& client) {
    return eventually([&] { return client.list().empty(); }, seconds(4));
  }
  void expect_no_gpu_memory_in_use() const {
    if (fake_ && fake_->mounted()) {
      EXPECT_TRUE(eventually([&] { return fake_->used_bytes(0) == 0; }, seconds(4)))
          << fake_->used_bytes(0);
    }
  }

  /// If set, new containers get everything except the GPU's device node.
  bool node_withheld_ = false;

 private:
  std::optional<gpushm::fake::fake_gpus> fake_;
  temp_dir domain_{0755};
};

std::string proc_line(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) {
      return line;
    }
  }
  return {};
}

std::string namespace_of(pid_t pid, const char* kind) {
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + kind).string();
}

TEST_P(isolation, consumer_may_start_first) {
  auto consumer = consume();
  auto producer = produce("leased");
  const auto broker = serve();
  producer.wait_for_line("^created", seconds(60));
  expect_correct_data(consumer);
  auto second = consume();
  expect_correct_data(second);
}

TEST_P(isolation, roles_share_no_namespace_and_have_no_privileges) {
  const auto broker = serve();
  auto producer = produce("leased");
  producer.wait_for_line("^created", seconds(60));
  auto consumer = consume("--hold");
  consumer.wait_for_line("\"opened\"", seconds(60));

  const std::vector<pid_t> pids{broker.host_pid(), producer.host_pid(), consumer.host_pid()};
  for (const char* kind : {"pid", "ipc", "net", "uts", "mnt", "cgroup"}) {
    std::set<std::string> distinct{namespace_of(::getpid(), kind)};
    for (const auto pid : pids) {
      distinct.insert(namespace_of(pid, kind));
    }
    EXPECT_EQ(distinct.size(), 4U) << kind;
  }
  for (const auto pid : pids) {
    EXPECT_THAT(proc_line(pid, "NSpid"), ::testing::EndsWith("\t1"))
        << "not PID 1 in its namespace";
    EXPECT_EQ(proc_line(pid, "CapEff"), "CapEff:\t0000000000000000");
    EXPECT_EQ(proc_line(pid, "CapBnd"), "CapBnd:\t0000000000000000");
    EXPECT_EQ(proc_line(pid, "NoNewPrivs"), "NoNewPrivs:\t1");
    EXPECT_EQ(proc_line(pid, "Seccomp"), "Seccomp:\t2");
  }
  EXPECT_THAT(proc_line(pids[1], "Uid"), HasSubstr("\t" + std::to_string(host_id(producer_uid))));
  EXPECT_THAT(proc_line(pids[2], "Uid"), HasSubstr("\t" + std::to_string(host_id(consumer_uid))));
}

TEST_P(isolation, persistent_memory_outlives_its_producer) {
  const auto broker = serve();
  {
    auto producer = produce("persistent");
    producer.wait_for_line("^created", seconds(60));
    producer.kill(SIGKILL);
    EXPECT_EQ(producer.wait_exit(seconds(30)), exited(128 + SIGKILL)) << producer.all_output();
  }
  auto client = watch();
  EXPECT_TRUE(eventually([&] { return !client.stat(segment_name).creator_alive; }, seconds(4)));
  auto consumer = consume();
  expect_correct_data(consumer);
  // Another uid may use the segment but not remove it; the broker's uid may remove it.
  auto other_uid = gpushm(consumer_uid, {"rm", segment_name});
  EXPECT_EQ(other_uid.wait_exit(seconds(30)), exited(1)) << other_uid.all_output();
  EXPECT_EQ(client.list().size(), 1U);
  auto broker_operator = gpushm(broker_uid, {"rm", segment_name});
  EXPECT_EQ(broker_operator.wait_exit(seconds(30)), exited(0)) << broker_operator.all_output();
  EXPECT_TRUE(becomes_empty(client));
  expect_no_gpu_memory_in_use();
}

TEST_P(isolation, leased_memory_is_freed_when_its_producer_dies) {
  const auto broker = serve();
  auto producer = produce("leased");
  producer.wait_for_line("^created", seconds(60));
  auto client = watch();
  EXPECT_EQ(client.stat(segment_name).leases, 1U);
  auto consumer = consume("--hold");
  consumer.wait_for_line("\"opened\"", seconds(60));
  EXPECT_EQ(client.stat(segment_name).leases, 2U);
  consumer.kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return client.stat(segment_name).leases == 1; }, seconds(4)));
  producer.kill(SIGKILL);
  (void)producer.wait_exit(seconds(30));
  EXPECT_TRUE(becomes_empty(client));
  expect_no_gpu_memory_in_use();
}

TEST_P(isolation, container_without_the_domain_cannot_connect) {
  const auto broker = serve();
  auto producer = produce("leased");
  producer.wait_for_line("^created", seconds(60));
  container_options outsider;
  outsider.argv = {"ls", "--json"};
  gpushm_testing::use_own_program(outsider, "gpushm");
  auto box = container::start(outsider);
  EXPECT_EQ(box.wait_exit(seconds(30)), exited(1)) << box.all_output();
  EXPECT_EQ(json::parse(box.text(stream::out)).at("error").at("code"), "broker_unreachable");
}

TEST_P(isolation, dead_broker_is_replaced_in_the_same_directory) {
  auto first = std::make_optional(serve());
  auto producer = produce("leased");
  producer.wait_for_line("^created", seconds(60));
  first->kill(SIGKILL);
  // "create --hold" exits with the broker: its segment no longer has a name.
  EXPECT_EQ(producer.wait_exit(seconds(30)), exited(1)) << producer.all_output();
  first.reset();
  const auto second = serve();
  auto next_producer = produce("leased");
  next_producer.wait_for_line("^created", seconds(60));
  auto consumer = consume();
  expect_correct_data(consumer);
}

class isolation_with_gpu : public isolation {};

TEST_P(isolation_with_gpu, hidden_gpu_is_named_in_the_error) {
  const auto broker = serve();
  auto producer = produce("leased");
  producer.wait_for_line("^created", seconds(60));
  auto client = watch();
  node_withheld_ = true;
  auto box = consume();
  EXPECT_EQ(box.wait_exit(seconds(30)), exited(1)) << box.all_output();
  const auto error = json::parse(box.text(stream::out)).at("error");
  EXPECT_THAT(error.at("code").get<std::string>(),
              ::testing::AnyOf("device_not_visible", "driver_unavailable"));
  EXPECT_THAT(error.at("message").get<std::string>(),
              HasSubstr(client.stat(segment_name).device.uuid));
  EXPECT_EQ(client.stat(segment_name).leases, 1U);
}

constexpr setting host{"host", memory::host, false};
constexpr setting host_in_user_namespaces{"host_in_user_namespaces", memory::host, true};
constexpr setting fake_gpu{"fake_gpu", memory::fake_gpu, false};
constexpr setting fake_gpu_in_user_namespaces{
    "fake_gpu_in_user_namespaces", memory::fake_gpu, true};
constexpr setting real_gpu{"real_gpu", memory::real_gpu, false};

std::string name_of(const ::testing::TestParamInfo<setting>& chosen) {
  return chosen.param.name;
}

INSTANTIATE_TEST_SUITE_P(,
                         isolation,
                         ::testing::Values(host,
                                           host_in_user_namespaces,
                                           fake_gpu,
                                           fake_gpu_in_user_namespaces,
                                           real_gpu),
                         name_of);
INSTANTIATE_TEST_SUITE_P(,
                         isolation_with_gpu,
                         ::testing::Values(fake_gpu, fake_gpu_in_user_namespaces, real_gpu),
                         name_of);

}  // namespace
}  // namespace gpushm_tests
