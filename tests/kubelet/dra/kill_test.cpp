// SPDX-License-Identifier: Apache-2.0
// SIGKILL between any two steps of preparing and unpreparing a claim: at the entry of each of their
// system calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kubernetes/dra/claims/claims.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/ptrace/traced_process.hpp"

namespace gpushm_testing {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

trace_result run_victim(const std::string& dir, const std::string& step, std::uint64_t kill_at) {
  spawn_options options;
  options.argv = {own_program("dra_victim"), dir, step};
  return traced_run(std::move(options), kill_at);
}

/// The next process after the kill: the state is consistent, and the kubelet's next call succeeds.
class recovery {
 public:
  explicit recovery(const std::string& dir)
      : dir_(dir),
        domains_(dir + "/run"),
        api_(cluster_),
        claims_(options(), api_, cluster_, domains_) {
    cluster_.put(claim_path(claim_), claim_object(claim_));
    claims_.restore();
  }
  [[nodiscard]] static gpushm::dra::claims_options options_for(const std::string& dir) {
    return {{test_driver, test_node}, dir + "/cdi", dir + "/state", "boot-1"};
  }

  /// Expects the claim to be prepared completely or not at all. Returns whether it is prepared.
  bool expect_consistent() {
    const bool prepared = claims_.size() == 1;
    const std::vector<std::string> none;
    EXPECT_EQ(names_in(dir_ + "/run"),
              prepared ? std::vector<std::string>{"claim-" + claim_.uid} : none);
    EXPECT_EQ(
        names_in(dir_ + "/cdi"),
        prepared ? std::vector<std::string>{"gpushm.dev-claim-" + claim_.uid + ".json"} : none);
    for (const std::string& name : names_in(dir_ + "/state")) {
      EXPECT_EQ(name.find(".tmp."), std::string::npos) << name;
    }
    return prepared;
  }
  void expect_prepare_works() {
    EXPECT_EQ(claims_.prepare(claim_).devices.size(), 1U);
    EXPECT_TRUE(expect_consistent());
  }
  void expect_unprepare_works() {
    claims_.unprepare(claim_);
    EXPECT_FALSE(expect_consistent());
  }
  void expect_sweep_frees() {
    cluster_.erase(claim_path(claim_));
    EXPECT_EQ(claims_.sweep().failure, "");
    EXPECT_FALSE(expect_consistent());
  }

 private:
  [[nodiscard]] gpushm::dra::claims_options options() const { return options_for(dir_); }

  std::string dir_;
  claim_reference claim_ = claim_number(1);
  memory_cluster cluster_;
  directory_domains domains_;
  gpushm::dra::resource_api api_;
  gpushm::dra::claims claims_;
};

TEST(dra_kill, during_prepare_loses_and_leaks_nothing) {
  unsigned before_commit = 0;
  unsigned after_commit = 0;
  for (std::uint64_t kill_at = 1;; ++kill_at) {
    ASSERT_LT(kill_at, 400U);
    const temp_dir dir;
    const trace_result result = run_victim(dir.path(), "prepare", kill_at);
    ASSERT_TRUE(result.began);
    if (!result.killed) {
      ASSERT_TRUE(result.ended);
      break;
    }
    SCOPED_TRACE(result.fatal_call + " as call " + std::to_string(kill_at));
    recovery next(dir.path());
    ++(next.expect_consistent() ? after_commit : before_commit);
    if (kill_at % 2 == 0) {
      next.expect_prepare_works();
      next.expect_unprepare_works();
    } else {
      next.expect_sweep_frees();
    }
  }
  EXPECT_GT(before_commit, 5U);
  EXPECT_GT(after_commit, 0U);
}

TEST(dra_kill, during_unprepare_loses_and_leaks_nothing) {
  unsigned before_commit = 0;
  unsigned after_commit = 0;
  for (std::uint64_t kill_at = 1;; ++kill_at) {
    ASSERT_LT(kill_at, 400U);
    const temp_dir dir;
    const trace_result result = run_victim(dir.path(), "unprepare", kill_at);
    ASSERT_TRUE(result.began);
    if (!result.killed) {
      ASSERT_TRUE(result.ended);
      break;
    }
    SCOPED_TRACE(result.fatal_call + " as call " + std::to_string(kill_at));
    recovery next(dir.path());
    ++(next.expect_consistent() ? before_commit : after_commit);
    if (kill_at % 2 == 0) {
      next.expect_unprepare_works();
    } else {
      next.expect_sweep_frees();
    }
  }
  EXPECT_GT(before_commit, 5U);
  EXPECT_GT(after_commit, 0U);
}

}  // namespace
}  // namespace gpushm_testing
