// SPDX-License-Identifier: Apache-2.0
// Quotas by domain, principal and uid: their text, and how they change without a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>

#include "domains/protocol/private_socket.hpp"
#include "domains/serve/domain_set.hpp"
#include "domains/serve/quota_rules.hpp"
#include "domains/serve/service.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::domains {
namespace {

using gpushm_testing::eventually;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::uint64_t mib = 1024 * 1024;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_FALSE(why.next_step().empty());
    return why.what();
  }
  return "no error";
}

TEST(quota_rules, most_specific_domain_applies) {
  const quota_rules rules(
      "# of this node\n"
      "domain claim-* gpu=20MiB\n"
      "\tdomain   claim-a-* gpu=10MiB host=1KiB\r\n"
      "domain claim-a-1 host=0\n"
      "\n"
      "principal host=5\n"
      "uid 1000 gpu=7 host=8\n"
      "uid 0 gpu=9",
      "it");
  const core::quotas otherwise{.domain = {1, 2}, .principal = {3, 4}};
  const auto domain = [&](const std::string& name) { return rules.of(name, otherwise).domain; };
  EXPECT_EQ(domain("default"), (core::quota{1, 2}));
  EXPECT_EQ(domain("claim-b"), (core::quota{1, 20 * mib}));
  EXPECT_EQ(domain("claim-a-2"), (core::quota{1024, 10 * mib}));
  EXPECT_EQ(domain("claim-a-1"), (core::quota{0, 2}));
  EXPECT_EQ(rules.of("x", otherwise).principal, (core::quota{5, 4}));
  EXPECT_EQ(rules.of("x", otherwise).uids,
            (std::map<std::uint32_t, core::quota>{{0, {0, 9}}, {1000, {8, 7}}}));
  EXPECT_EQ(quota_rules("", "it").of("x", otherwise), otherwise);
}

TEST(quota_rules, wrong_lines_are_refused) {
  const struct {
    const char* text;
    const char* cause;
  } cases[] = {
      {"domain a\n", "line 1: \"domain a\" has no quota"},
      {"\n# x\nnode a gpu=1", "line 3: \"node\" is not a level"},
      {"uid root gpu=1", "line 1: \"root\" is not the number of a uid"},
      {"uid -1 gpu=1", "line 1: \"-1\" is not the number of a uid"},
      {"uid 1 gpu=", "line 1: \"gpu=\" is not a size"},
      {"uid 1 gpu=1 gpu=2", "line 1: \"gpu=2\" is not a size"},
      {"principal cpu=1", "line 1: \"cpu=1\" is not a size"},
      {"domain a gpu=1\ndomain a gpu=2", "line 2: \"domain a gpu=2\" repeats an earlier line"},
      {"principal gpu=1\nprincipal host=2", "line 2: \"principal host=2\" repeats"},
  };
  for (const auto& each : cases) {
    EXPECT_THAT(error_of([&] { quota_rules(each.text, "FILE"); }),
                HasSubstr(std::string("read quotas \"FILE\": ") + each.cause));
  }
  EXPECT_THAT(error_of([&] { quota_rules(std::string(40'000, '#'), "FILE"); }),
              HasSubstr("it is longer than 32768 bytes"));
}

class quotas_of_a_node : public ::testing::Test {
 protected:
  void start(const std::string& quota_file = {}) {
    service_.reset();
    domains_.reset();
    domain_set_options options;
    options.run_dir = run_dir_;
    options.domains = {"default"};
    options.quota_file = quota_file;
    options.check_interval = 10ms;
    options.timeout = gpushm_testing::scaled_timeout(30s);
    domains_.emplace(options);
    domains_->serve();
    service_.emplace(*domains_, run_dir_);
  }
  /// Returns once they apply in the domains.
  void set(const std::string& text) {
    agent_.set_quotas(text, patience_);
    for (const reading& each : domains_->read()) {
      static_cast<void>(usage_of(each.domain));
    }
  }
  [[nodiscard]] usages usage_of(const std::string& domain) const {
    return agent_.read_usage(domain, patience_);
  }
  [[nodiscard]] std::optional<usage> row(const std::string& level,
                                         const std::string& resource,
                                         const std::string& domain = "default") const {
    for (const usage& each : usage_of(domain).all) {
      if (each.level == level && each.resource == resource) {
        return each;
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] client connect(const std::string& domain = "default") const {
    return client::connect({.socket_path = run_dir_ + "/d/" + domain + "/socket"});
  }
  static std::string create(client& client, const std::string& name, std::uint64_t size) {
    return error_of([&] {
      client.create(name, {.size_bytes = size, .device = "host", .lifetime = lifetime::persistent})
          .publish();
    });
  }

  gpushm_testing::temp_dir folder_;
  const std::string run_dir_ = folder_ / "run";
  const private_socket agent_{run_dir_};
  const std::chrono::milliseconds patience_ = gpushm_testing::scaled_timeout(30s);
  std::optional<domain_set> domains_;
  std::optional<service> service_;
};

TEST_F(quotas_of_a_node, change_without_a_restart) {
  start();
  client member = connect();
  EXPECT_EQ(create(member, "a", 2 * mib), "no error");
  const std::string uid = "uid " + std::to_string(::geteuid());
  set("domain default host=3MiB\ndomain claim-* host=1MiB");
  EXPECT_THAT(create(member, "b", 2 * mib), HasSubstr("2 MiB of 3 MiB are in use in this domain"));
  EXPECT_EQ(create(member, "b", mib), "no error");
  domains_->open("claim-a");
  client other = connect("claim-a");
  EXPECT_THAT(create(other, "a", 2 * mib), HasSubstr("0 B of 1 MiB are in use in this domain"));

  // Lower than what is used: nothing is taken away.
  set(uid + " host=1MiB");
  EXPECT_THAT(create(member, "c", 1),
              HasSubstr("the quota of " + uid +
                        " in all pods and containers of this domain: 3 MiB of 1 MiB are in use"));
  EXPECT_EQ(member.list().size(), 2U);
  EXPECT_EQ(create(other, "a", mib), "no error") << "each domain has its own account of a uid";
  const auto used = row("uid", "host_bytes");
  ASSERT_TRUE(used);
  EXPECT_EQ(used->name, uid);
  EXPECT_EQ(used->used, 3 * mib);
  EXPECT_EQ(used->limit, mib);

  EXPECT_THAT(error_of([&] { set("domain\n"); }), HasSubstr("line 1: \"domain\" has no quota"));
  EXPECT_EQ(usage_of("default").quotas, uid + " host=1MiB") << "bad input changes nothing";
  EXPECT_THAT(create(member, "c", 1), HasSubstr("quota"));
  set("");
  EXPECT_EQ(create(member, "c", 1), "no error");
}

TEST_F(quotas_of_a_node, are_kept_for_the_next_process) {
  start();
  set("domain default host=1MiB\n");
  start();
  EXPECT_EQ(usage_of("default").quotas, "domain default host=1MiB\n");
  client member = connect();
  EXPECT_THAT(create(member, "a", 2 * mib), HasSubstr("of 1 MiB are in use"));
}

TEST_F(quotas_of_a_node, file_is_read_again_when_it_changes) {
  const std::string path = folder_ / "quotas";
  const auto write = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
  };
  const auto limit_becomes = [&](std::uint64_t expected) {
    return eventually(
        [&] {
          const auto domain = row("domain", "host_bytes");
          return (domain ? domain->limit : 0) == expected;
        },
        30s);
  };
  write("domain default host=1MiB");
  start(path);
  client member = connect();
  EXPECT_THAT(create(member, "a", 2 * mib), HasSubstr("of 1 MiB are in use"));
  write("domain default host=3MiB");
  EXPECT_TRUE(limit_becomes(3 * mib));
  EXPECT_EQ(create(member, "a", 2 * mib), "no error");
  EXPECT_THAT(error_of([&] { set(""); }), HasSubstr("the quotas are those in " + path));

  // A wrong file, and none: the last good one applies, also after a restart.
  write("domain default host=much");
  start(path);
  EXPECT_TRUE(limit_becomes(3 * mib));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  start(path);
  EXPECT_TRUE(limit_becomes(3 * mib));
  write("domain default host=4MiB");
  EXPECT_TRUE(limit_becomes(4 * mib));
}

TEST_F(quotas_of_a_node, usage_is_read_by_level) {
  start();
  client member = connect();
  EXPECT_EQ(create(member, "a", 2 * mib), "no error");
  for (const char* level : {"domain", "principal", "uid"}) {
    const auto used = row(level, "host_bytes");
    ASSERT_TRUE(used) << level;
    EXPECT_EQ(used->used, 2 * mib) << level;
    EXPECT_EQ(row(level, "segments")->used, 1U) << level;
    EXPECT_GT(row(level, "memory_bytes")->used, 0U) << level;
  }
  EXPECT_EQ(row("domain", "host_bytes")->name, "default");
  EXPECT_THAT(error_of([&] { static_cast<void>(usage_of("other")); }),
              HasSubstr("no such domain is served"));
}

}  // namespace
}  // namespace gpushm::domains
