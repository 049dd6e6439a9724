// SPDX-License-Identifier: Apache-2.0
// The node's domains: who can reach which, and what is left of one that ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "brokers.hpp"
#include "gpushm/gpushm.hpp"
#include "process/proc_counters.hpp"
#include "process/temp_dir.hpp"

namespace gpushm::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777U;
}

class agent_brokers : public ::testing::Test {
 protected:
  broker_set_options options() {
    broker_set_options made;
    made.run_dir = folder_ / "run";
    made.domains = {"default"};
    return made;
  }
  client connect(const std::string& domain) {
    return client::connect({.socket_path = folder_ / ("run/d/" + domain + "/socket")});
  }

  gpushm_testing::temp_dir folder_;
};

TEST_F(agent_brokers, the_directory_above_the_domains_is_closed_and_theirs_are_open) {
  const broker_set brokers(options());
  EXPECT_EQ(mode_of(folder_ / "run/d"), 0700U);
  EXPECT_EQ(mode_of(folder_ / "run/d/default"), 0755U);
  EXPECT_EQ(mode_of(folder_ / "run/d/default/socket"), 0666U);
  EXPECT_EQ(brokers.directory(), folder_ / "run/d");
}

TEST_F(agent_brokers, domains_do_not_see_each_other) {
  broker_set brokers(options());
  EXPECT_EQ(brokers.open("claim-a"), folder_ / "run/d/claim-a");
  brokers.open("claim-b");
  client a = connect("claim-a");
  segment made = a.create("w", {.size_bytes = 4'096, .device = "host"});
  made.publish();
  EXPECT_TRUE(connect("claim-a").try_open("w"));
  EXPECT_FALSE(connect("claim-b").try_open("w"));
  EXPECT_FALSE(connect("default").try_open("w"));
  EXPECT_THAT(brokers.list(), ElementsAre("claim-a", "claim-b"));
}

TEST_F(agent_brokers, opening_again_changes_nothing) {
  broker_set brokers(options());
  brokers.open("claim-a");
  client a = connect("claim-a");
  segment made = a.create("w", {.size_bytes = 4'096, .device = "host"});
  made.publish();
  brokers.open("claim-a");
  EXPECT_TRUE(connect("claim-a").try_open("w"));
}

TEST_F(agent_brokers, closing_ends_clients_frees_segments_and_leaves_nothing) {
  broker_set brokers(options());
  const auto before = gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  brokers.open("claim-a");
  {
    client a = connect("claim-a");
    segment made =
        a.create("w", {.size_bytes = 4'096, .device = "host", .lifetime = lifetime::persistent});
    made.publish();
    brokers.close("claim-a");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run/d/claim-a"));
    EXPECT_THROW(static_cast<void>(connect("claim-a")), error);
    brokers.open("claim-a");
    EXPECT_THAT(connect("claim-a").list(), IsEmpty());
    brokers.close("claim-a");
  }
  EXPECT_THAT(brokers.list(), IsEmpty());
  EXPECT_EQ(gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())), before);
  brokers.close("claim-a");  // that is not open: nothing
}

TEST_F(agent_brokers, a_directory_that_was_left_behind_is_listed_and_removed) {
  std::filesystem::create_directories(folder_ / "run/d/claim-old");
  broker_set brokers(options());
  EXPECT_THAT(brokers.list(), ElementsAre("claim-old"));
  brokers.close("claim-old");
  EXPECT_THAT(brokers.list(), IsEmpty());
}

TEST_F(agent_brokers, what_is_always_there_is_not_closed) {
  broker_set brokers(options());
  EXPECT_THAT(brokers.list(), IsEmpty());
  try {
    brokers.close("default");
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "close domain \"default\": it is one of those that are always there (take it out "
                 "of broker.domains)");
  }
  EXPECT_THROW(brokers.open("../x"), error);
  EXPECT_THROW(brokers.close(".."), error);
}

TEST_F(agent_brokers, readings_name_each_domain) {
  broker_set brokers(options());
  brokers.open("claim-a");
  client a = connect("claim-a");
  const auto all = brokers.readings();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].domain, "claim-a");
  EXPECT_EQ(all[0].counted.connections, 1U);
  EXPECT_EQ(all[1].domain, "default");
  EXPECT_EQ(all[1].counted.connections, 0U);
}

}  // namespace
}  // namespace gpushm::agent
