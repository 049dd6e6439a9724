// SPDX-License-Identifier: Apache-2.0
// Containers of two claims cannot access each other's domains: applies each claim's document in a
// separate mount namespace, like a container runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <thread>

#include "kubernetes/dra/claims/claims.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using testing::ElementsAre;

TEST(dra_isolation, container_has_read_only_access_to_its_claim_only) {
  const temp_dir dir;
  memory_cluster cluster;
  broker_domains domains(dir / "run");
  gpushm::dra::resource_api api(cluster);
  gpushm::dra::claims subject(
      {{test_driver, test_node}, dir / "cdi", dir / "state", "boot"}, api, cluster, domains);
  subject.restore();
  std::string problem;
  for (const unsigned number : {1U, 2U}) {
    const claim_reference claim = claim_number(number);
    cluster.put(claim_path(claim), claim_object(claim, {{.device = "share-1"}}));
    subject.prepare(claim);
  }
  for (const unsigned number : {1U, 2U}) {
    const json document =
        json::parse(read_text(dir / "cdi" + ("/gpushm.dev-claim-" + uid_of(number) + ".json")));
    const json& mount = document.at("devices").at(0).at("containerEdits").at("mounts").at(0);
    const std::string inside = mount.at("containerPath");
    const std::string outside = mount.at("hostPath");
    // The thread has a separate mount namespace, which is destroyed with it.
    std::thread([&] {
      const std::string root = dir / "root";
      std::filesystem::create_directories(root);
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", root.c_str(), "tmpfs", 0, nullptr) != 0) {
        problem = "requires root to create a mount namespace";
        return;
      }
      const std::string target = root + inside;
      std::filesystem::create_directories(target);
      ASSERT_EQ(::mount(outside.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr), 0);
      ASSERT_EQ(
          ::mount(nullptr, target.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
      EXPECT_THAT(names_in(root + "/run/gpushm/d"), ElementsAre("claim-" + uid_of(number)));
      EXPECT_THAT(names_in(target), testing::Contains("socket"));
      std::error_code refused;
      std::filesystem::remove(target + "/socket", refused);
      EXPECT_EQ(refused, std::errc::read_only_file_system);
      EXPECT_EQ(names_in(target + "/..").size(), 1U);
    }).join();
  }
  if (!problem.empty()) {
    GTEST_SKIP() << problem;
  }
}

}  // namespace
}  // namespace gpushm_testing
