// SPDX-License-Identifier: Apache-2.0
// Who may manage everything in a domain of gpushm-brokerd: real containers whose root has taken the
// broker's uid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/container/container.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::brokerd_uid;
using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::exited;
using gpushm_testing::own_program;
using gpushm_testing::scaled_timeout;
using testing::HasSubstr;

class broker_operator : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
  }
  /// A persistent segment of root, as a workload leaves it behind.
  void create(const std::string& name) const {
    gpushm::client user = gpushm_testing::patient_client(directory_of_domain_ + "/socket");
    gpushm::segment created = user.create(
        name, {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
  }
  [[nodiscard]] static std::vector<std::string> remove(const std::string& name,
                                                       const std::string& directory) {
    return {"rm", name, "--socket", directory + "/socket"};
  }
  /// `gpushm rm` with the broker's uid, in a container that has the domain.
  [[nodiscard]] container remove_in_container(const std::string& name) const {
    container_options options;
    options.argv = remove(name, "/run/gpushm/d/default");
    gpushm_testing::use_own_program(options, "gpushm");
    options.uid = brokerd_uid();
    options.gid = brokerd_uid();
    options.mounts.push_back({directory_of_domain_, "/run/gpushm/d/default", false, false});
    return container::start(options);
  }
  void expect_refused_in_container(const std::string& name) const {
    container stranger = remove_in_container(name);
    EXPECT_EQ(stranger.wait_exit(scaled_timeout(30s)), exited(1)) << stranger.all_output();
    EXPECT_THAT(stranger.all_output(), HasSubstr("may remove a segment"));
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string directory_of_domain_ = run_dir_ + "/d/default";
};

TEST_F(broker_operator, is_its_uid_on_the_host_and_in_no_container) {
  gpushm_testing::brokerd broker(run_dir_, {"--domain", "default"});
  create("left/behind");
  expect_refused_in_container("left/behind");
  ASSERT_TRUE(broker.kill());
  expect_refused_in_container("left/behind");
  gpushm_testing::spawn_options command;
  command.argv = remove("left/behind", directory_of_domain_);
  command.argv.insert(command.argv.begin(), own_program("gpushm"));
  command.uid = brokerd_uid();
  command.gid = brokerd_uid();
  const auto done = gpushm_testing::run_program(command, scaled_timeout(30s));
  EXPECT_EQ(done.status, exited(0)) << done.err;
}

TEST_F(broker_operator, is_its_uid_in_its_own_container_only) {
  gpushm_testing::make_run_directory(run_dir_);
  container_options options;
  options.argv = {"--socket",
                  "/tmp/keeper/notify",
                  "--stay",
                  "--",
                  own_program("gpushm-brokerd"),
                  "--domain",
                  "default"};
  gpushm_testing::use_own_program(options, "gpushm-keeper");
  options.uid = brokerd_uid();
  options.gid = brokerd_uid();
  options.mounts.push_back({run_dir_, "/run/gpushm", true, false});
  container pod = container::start(options);
  ASSERT_TRUE(gpushm_testing::eventually(
      [&] {
        return pod.exec({own_program("gpushm-brokerd"), "check"}).status == exited(0);
      },
      scaled_timeout(30s)))
      << pod.all_output();
  create("left/behind");
  expect_refused_in_container("left/behind");
  std::vector<std::string> command = remove("left/behind", "/run/gpushm/d/default");
  command.insert(command.begin(), own_program("gpushm"));
  const auto done = pod.exec(command);
  EXPECT_EQ(done.status, exited(0)) << done.err;
}

}  // namespace
