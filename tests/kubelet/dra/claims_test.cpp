// SPDX-License-Identifier: Apache-2.0
// Preparing, unpreparing, restoring and sweeping claims, with directories for domains and an API
// server in memory.
#include "kubernetes/dra/claims/claims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <latch>
#include <memory>
#include <thread>

#include "containers/cdi/document/parse.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/checkpoint.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::dra::claims;
using gpushm::dra::prepared_claim;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using namespace std::chrono_literals;

template <typename Call>
std::string failure_of(Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

class dra_claims : public testing::Test {
 protected:
  void SetUp() override { start(); }

  /// Restarts with the existing directories, as a new process; `boot` is the boot ID.
  std::vector<std::string> start(const std::string& boot = "boot-1") {
    claims_.reset();
    api_ = std::make_unique<gpushm::dra::resource_api>(cluster_);
    claims_ = std::make_unique<claims>(
        gpushm::dra::claims_options{{test_driver, test_node}, cdi_, state_, boot},
        *api_,
        cluster_,
        domains_);
    return claims_->restore();
  }
  claims& subject() { return *claims_; }

  claim_reference add_claim(unsigned number, const std::vector<test_result>& results = {{}}) {
    const claim_reference claim = claim_number(number);
    cluster_.put(claim_path(claim), claim_object(claim, results));
    return claim;
  }
  void expect_nothing_left() const {
    EXPECT_THAT(names_in(cdi_), IsEmpty());
    EXPECT_THAT(names_in(run_), IsEmpty());
    EXPECT_EQ(claims_->size(), 0U);
  }
  [[nodiscard]] std::string document_of(const claim_reference& claim) const {
    return cdi_ + "/gpushm.dev-claim-" + claim.uid + ".json";
  }

  temp_dir dir_;
  std::string cdi_ = dir_ / "cdi";
  std::string state_ = dir_ / "state";
  std::string run_ = dir_ / "run";
  memory_cluster cluster_;
  directory_domains domains_{run_};
  std::unique_ptr<gpushm::dra::resource_api> api_;
  std::unique_ptr<claims> claims_;
};

TEST_F(dra_claims, prepare_creates_domain_document_and_entry) {
  const claim_reference claim = add_claim(1);
  const prepared_claim prepared = subject().prepare(claim);
  EXPECT_EQ(prepared.domain, "claim-" + claim.uid);
  EXPECT_THAT(names_in(run_), ElementsAre(prepared.domain));
  EXPECT_THAT(names_in(cdi_), ElementsAre("gpushm.dev-claim-" + claim.uid + ".json"));
  const json document = json::parse(read_text(document_of(claim)));
  EXPECT_EQ(document.at("kind"), "gpushm.dev/claim");
  EXPECT_EQ(document.at("devices").at(0).at("containerEdits").at("mounts").at(0).at("hostPath"),
            run_ + "/" + prepared.domain);
  EXPECT_EQ(
      document.at("devices").at(0).at("containerEdits").at("mounts").at(0).at("containerPath"),
      "/run/gpushm/d/" + prepared.domain);
  EXPECT_EQ(json::parse(read_text(state_ + "/dra-checkpoint.json"))
                .at("data")
                .at("claims")
                .at(claim.uid)
                .at("name"),
            "claim-1");
  subject().unprepare(claim);
  expect_nothing_left();
}

TEST_F(dra_claims, repeated_prepare_writes_nothing) {
  const claim_reference claim = add_claim(1);
  const prepared_claim first = subject().prepare(claim);
  struct stat before {};
  ASSERT_EQ(::stat((state_ + "/dra-checkpoint.json").c_str(), &before), 0);
  EXPECT_EQ(subject().prepare(claim), first);
  struct stat after {};
  ASSERT_EQ(::stat((state_ + "/dra-checkpoint.json").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  subject().unprepare(claim);
  subject().unprepare(claim);
  expect_nothing_left();
}

TEST_F(dra_claims, unprepare_accepts_unknown_claims_and_server_outage) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  cluster_.unreachable = true;
  const unsigned gets = cluster_.gets;
  subject().unprepare(claim);
  subject().unprepare(claim_number(99));
  subject().unprepare({"", "", "../../etc"});
  EXPECT_EQ(cluster_.gets, gets);
  expect_nothing_left();
}

TEST_F(dra_claims, removed_document_is_recreated) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  const std::string text = read_text(document_of(claim));
  std::filesystem::remove(document_of(claim));
  subject().prepare(claim);
  EXPECT_EQ(read_text(document_of(claim)), text);
}

TEST_F(dra_claims, deleted_claim_is_reported_and_leaves_nothing) {
  EXPECT_EQ(failure_of([&] { subject().prepare(claim_number(5)); }),
            "prepare claim \"default/claim-5\": the claim no longer exists on the API server (pods "
            "that use it cannot start until it is recreated)");
  expect_nothing_left();
}

TEST_F(dra_claims, claim_deleted_while_prepared_is_swept) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  cluster_.erase(claim_path(claim));
  EXPECT_THAT(subject().sweep().freed, ElementsAre("default/claim-1"));
  expect_nothing_left();
}

TEST_F(dra_claims, prepared_claims_are_served_during_server_outage) {
  const claim_reference known = add_claim(1);
  const claim_reference unknown = add_claim(2);
  const prepared_claim first = subject().prepare(known);
  cluster_.unreachable = true;
  EXPECT_EQ(subject().prepare(known), first);
  EXPECT_EQ(failure_of([&] { subject().prepare(unknown); }),
            "prepare claim \"default/claim-2\": connection refused (start the server)");
  EXPECT_EQ(subject().size(), 1U);
  EXPECT_THAT(names_in(run_), ElementsAre(first.domain));
}

TEST_F(dra_claims, prepared_claims_need_no_server) {
  const claim_reference claim = add_claim(1);
  EXPECT_FALSE(subject().is_prepared(claim));
  const prepared_claim first = subject().prepare(claim);
  const unsigned gets = cluster_.gets;
  EXPECT_TRUE(subject().is_prepared(claim));
  EXPECT_EQ(subject().prepare(claim), first);
  start();  // the agent is a new process
  EXPECT_EQ(subject().prepare(claim), first);
  EXPECT_EQ(cluster_.gets, gets);
  EXPECT_FALSE(subject().is_prepared({"default", "other", claim.uid}));
  subject().unprepare(claim);
  EXPECT_FALSE(subject().is_prepared(claim));
}

TEST_F(dra_claims, claims_of_the_previous_boot_are_read_again) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  cluster_.put(claim_path(claim), claim_object(claim, {{.device = "share-9"}}));
  cluster_.unreachable = true;
  start("boot-2");
  EXPECT_EQ(subject().prepare(claim).devices.at(0).device, "share-0");
  EXPECT_FALSE(subject().is_prepared(claim));
  cluster_.unreachable = false;
  EXPECT_EQ(subject().prepare(claim).devices.at(0).device, "share-9");
  EXPECT_TRUE(subject().is_prepared(claim));
}

TEST_F(dra_claims, unserved_version_is_not_a_deleted_claim) {
  const claim_reference known = add_claim(1);
  const claim_reference unknown = add_claim(2);
  const prepared_claim first = subject().prepare(known);
  cluster_.error_status = 404;  // with the reason NotFound, but of no object
  EXPECT_EQ(subject().prepare(known), first);
  EXPECT_EQ(failure_of([&] { subject().prepare(unknown); }),
            "prepare claim \"default/claim-2\": not allowed");
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, changed_allocation_is_prepared_again) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  cluster_.put(claim_path(claim), claim_object(claim, {{.device = "share-9"}}));
  // A kubelet unprepares a claim before it uses another allocation; the sweep detects one that did
  // not.
  EXPECT_EQ(subject().prepare(claim).devices.at(0).device, "share-0");
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  EXPECT_FALSE(subject().is_prepared(claim));
  EXPECT_EQ(subject().prepare(claim).devices.at(0).device, "share-9");
  EXPECT_TRUE(subject().is_prepared(claim));
  EXPECT_THAT(read_text(document_of(claim)), HasSubstr(claim.uid + "-share-9"));
  start();
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, api_version_switch_is_followed) {
  const claim_reference claim = claim_number(1);
  cluster_.set_versions({"v1beta1"});
  start();
  cluster_.put(claim_path(claim, "v1beta1"), claim_object(claim));
  subject().prepare(claim);
  cluster_.set_versions({"v1", "v1beta2"});
  cluster_.erase(claim_path(claim, "v1beta1"));
  cluster_.put(claim_path(claim), claim_object(claim));
  subject().prepare(claim);
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, failed_domain_open_leaves_nothing) {
  const claim_reference claim = add_claim(1);
  domains_.open_fails = true;
  EXPECT_EQ(failure_of([&] { subject().prepare(claim); }),
            "prepare claim \"default/claim-1\": no descriptors left");
  domains_.open_fails = false;
  expect_nothing_left();
}

TEST_F(dra_claims, failed_document_write_leaves_nothing) {
  const claim_reference claim = add_claim(1);
  write_text(cdi_, "no directory");
  EXPECT_THAT(failure_of([&] { subject().prepare(claim); }),
              HasSubstr("prepare claim \"default/claim-1\": "));
  EXPECT_THAT(names_in(run_), IsEmpty());
  EXPECT_EQ(subject().size(), 0U);
}

TEST_F(dra_claims, failed_domain_close_keeps_claim_prepared) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  domains_.close_fails = true;
  EXPECT_EQ(failure_of([&] { subject().unprepare(claim); }),
            "unprepare claim \"default/claim-1\": Device or resource busy (EBUSY)");
  EXPECT_EQ(subject().size(), 1U);
  domains_.close_fails = false;
  subject().unprepare(claim);
  expect_nothing_left();
}

TEST_F(dra_claims, unprepare_without_a_broker_leaves_the_domain_to_the_sweep) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  domains_.broker_is_away = true;
  subject().unprepare(claim);
  EXPECT_EQ(subject().size(), 0U);
  EXPECT_THAT(names_in(cdi_), IsEmpty());
  EXPECT_EQ(names_in(run_).size(), 1U);
  domains_.broker_is_away = false;
  EXPECT_THAT(subject().sweep().freed, ElementsAre("claim-" + claim.uid));
  expect_nothing_left();
}

TEST_F(dra_claims, parallel_claims_are_independent) {
  constexpr unsigned count = 16;
  for (unsigned number = 0; number < count; ++number) {
    add_claim(number, {{.device = "share-" + std::to_string(number)}});
  }
  {
    std::vector<std::jthread> threads;
    for (unsigned number = 0; number < 2 * count; ++number) {
      threads.emplace_back([&, number] { subject().prepare(claim_number(number % count)); });
    }
  }
  EXPECT_EQ(subject().size(), count);
  EXPECT_EQ(domains_.opened, 2 * count);
  start();
  EXPECT_EQ(subject().size(), count);
  {
    std::vector<std::jthread> threads;
    for (unsigned number = 0; number < 2 * count; ++number) {
      threads.emplace_back([&, number] { subject().unprepare(claim_number(number % count)); });
    }
  }
  expect_nothing_left();
}

/// The next `open` returns only after `go_on`.
class stuck_domains : public directory_domains {
 public:
  using directory_domains::directory_domains;
  std::string open(const std::string& domain) override {
    std::string directory = directory_domains::open(domain);
    if (next_is_stuck.exchange(false)) {
      entered_.count_down();
      go_on_.wait();
    }
    return directory;
  }
  void wait_for_stuck_call() const { entered_.wait(); }
  void go_on() { go_on_.count_down(); }

  std::atomic<bool> next_is_stuck{false};

 private:
  std::latch entered_{1};
  std::latch go_on_{1};
};

TEST_F(dra_claims, stuck_call_delays_others_for_its_claim_until_timeout) {
  const claim_reference claim = add_claim(1);
  const claim_reference other = add_claim(2);
  stuck_domains stuck(run_);
  claims_.reset();
  claims_ = std::make_unique<claims>(
      gpushm::dra::claims_options{{test_driver, test_node}, cdi_, state_, "boot-1", 20ms},
      *api_,
      cluster_,
      stuck);
  subject().restore();
  subject().prepare(claim);
  subject().prepare(other);
  stuck.next_is_stuck = true;
  std::jthread call([&] { subject().prepare(claim); });
  stuck.wait_for_stuck_call();
  const std::string cause =
      "another call for the claim with UID " + claim.uid +
      " has not ended within 20 ms (it will be tried again; see the log of gpushmd if this lasts)";
  EXPECT_EQ(failure_of([&] { subject().prepare(claim); }),
            "prepare claim \"default/claim-1\": " + cause);
  EXPECT_EQ(failure_of([&] { subject().unprepare(claim); }),
            "unprepare claim \"default/claim-1\": " + cause);
  cluster_.erase(claim_path(other));
  const claims::sweep_result result = subject().sweep();
  EXPECT_EQ(result.failure, "sweep claim \"default/claim-1\": " + cause);
  EXPECT_THAT(result.freed, ElementsAre("default/claim-2"));
  stuck.go_on();
  call.join();
  EXPECT_EQ(subject().sweep().failure, "");
  EXPECT_EQ(subject().size(), 1U);
  subject().unprepare(claim);
  expect_nothing_left();
}

TEST_F(dra_claims, sweep_keeps_claim_of_a_stuck_prepare) {
  const claim_reference claim = add_claim(1);
  stuck_domains stuck(run_);
  claims_.reset();
  claims_ = std::make_unique<claims>(
      gpushm::dra::claims_options{{test_driver, test_node}, cdi_, state_, "boot-1", 20ms},
      *api_,
      cluster_,
      stuck);
  subject().restore();
  stuck.next_is_stuck = true;
  std::jthread call([&] { subject().prepare(claim); });
  stuck.wait_for_stuck_call();
  const claims::sweep_result result = subject().sweep();
  EXPECT_EQ(result.failure,
            "sweep claims \"node-a\": another call for the claim with UID " + claim.uid +
                " has not ended within 20 ms (it will be tried again; see the log of gpushmd if "
                "this lasts)");
  EXPECT_THAT(result.freed, IsEmpty());
  stuck.go_on();
  call.join();
  EXPECT_THAT(names_in(run_), ElementsAre("claim-" + claim.uid));
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, leaks_no_descriptor) {
  add_claim(1);
  subject().prepare(claim_number(1));
  const auto before = count_descriptors(::getpid());
  for (int round = 0; round < 20; ++round) {
    subject().unprepare(claim_number(1));
    subject().prepare(claim_number(1));
    subject().sweep();
  }
  EXPECT_EQ(to_text(count_descriptors(::getpid())), to_text(before));
}

// ---- restarts ----

TEST_F(dra_claims, restart_restores_claims_during_server_outage) {
  const claim_reference claim = add_claim(1);
  const prepared_claim first = subject().prepare(claim);
  std::filesystem::remove_all(run_);
  std::filesystem::remove_all(cdi_);
  cluster_.unreachable = true;
  EXPECT_THAT(start(), IsEmpty());
  EXPECT_THAT(names_in(run_), ElementsAre(first.domain));
  EXPECT_THAT(names_in(cdi_), ElementsAre("gpushm.dev-claim-" + claim.uid + ".json"));
  EXPECT_EQ(subject().prepare(claim), first);
}

TEST_F(dra_claims, restart_removes_only_claims_not_in_checkpoint) {
  const std::string left = "claim-" + uid_of(7);
  std::filesystem::create_directories(run_ + "/" + left);
  std::filesystem::create_directories(run_ + "/default");
  std::filesystem::create_directories(cdi_);
  write_text(cdi_ + "/gpushm.dev-claim-" + uid_of(8) + ".json", "{}");
  write_text(cdi_ + "/gpushm.dev-claim-" + uid_of(9) + ".json.tmp.Ab12Cd", "{");
  write_text(cdi_ + "/nvidia.yaml", "");
  write_text(cdi_ + "/gpushm.dev-share.json", "");
  write_text(state_ + "/dra-checkpoint.json.tmp.Ab12Cd", "{");
  write_text(state_ + "/another-file.tmp.Ab12Cd", "{");
  EXPECT_THAT(start(),
              ElementsAre("freed " + left + ", which is not in the checkpoint",
                          "freed claim-" + uid_of(8) + ", which is not in the checkpoint"));
  EXPECT_THAT(names_in(run_), ElementsAre("default"));
  EXPECT_THAT(names_in(cdi_), ElementsAre("gpushm.dev-share.json", "nvidia.yaml"));
  EXPECT_THAT(names_in(state_), Not(Contains("dra-checkpoint.json.tmp.Ab12Cd")));
  EXPECT_THAT(names_in(state_), Contains("another-file.tmp.Ab12Cd"));
}

TEST_F(dra_claims, reboot_drops_deleted_claims) {
  const claim_reference kept = add_claim(1);
  const claim_reference deleted = add_claim(2, {{.device = "share-1"}});
  subject().prepare(kept);
  subject().prepare(deleted);
  cluster_.erase(claim_path(deleted));
  std::filesystem::remove_all(run_);
  std::filesystem::remove_all(cdi_);
  EXPECT_THAT(start("boot-2"),
              ElementsAre("dropped claim default/claim-2, which ended with the previous boot"));
  EXPECT_THAT(names_in(run_), ElementsAre("claim-" + kept.uid));
  EXPECT_EQ(subject().size(), 1U);
  EXPECT_EQ(json::parse(read_text(state_ + "/dra-checkpoint.json")).at("data").at("bootID"),
            "boot-2");
}

TEST_F(dra_claims, reboot_during_server_outage_restores_all) {
  subject().prepare(add_claim(1));
  subject().prepare(add_claim(2, {{.device = "share-1"}}));
  std::filesystem::remove_all(run_);
  cluster_.unreachable = true;
  EXPECT_THAT(start("boot-2"), ElementsAre(HasSubstr("connection refused")));
  EXPECT_EQ(names_in(run_).size(), 2U);
}

TEST_F(dra_claims, failed_reopen_is_a_problem_until_resolved) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  domains_.open_fails = true;
  EXPECT_THAT(start(), ElementsAre("open claim again \"default/claim-1\": no descriptors left"));
  EXPECT_THAT(subject().problems(),
              ElementsAre(testing::Pair(
                  "share-0", "open claim again \"default/claim-1\": no descriptors left")));
  domains_.open_fails = false;
  EXPECT_EQ(subject().sweep().failure, "");
  EXPECT_THAT(subject().problems(), IsEmpty());
}

// ---- the sweep ----

TEST_F(dra_claims, sweep_frees_unused_claims) {
  for (const unsigned number : {1U, 2U, 3U, 4U}) {
    subject().prepare(add_claim(number));
  }
  json other = claim_object(claim_number(2));
  other["metadata"]["uid"] = uid_of(22);
  cluster_.put(claim_path(claim_number(2)), other);
  cluster_.erase(claim_path(claim_number(3)));
  json elsewhere = claim_object(claim_number(4), {{.pool = "node-b"}});
  cluster_.put(claim_path(claim_number(4)), elsewhere);
  const claims::sweep_result result = subject().sweep();
  EXPECT_THAT(result.freed, ElementsAre("default/claim-2", "default/claim-3"));
  EXPECT_EQ(result.failure, "");
  EXPECT_THAT(subject().sweep().freed, ElementsAre("default/claim-4"));
  EXPECT_THAT(names_in(run_), ElementsAre("claim-" + uid_of(1)));
  EXPECT_EQ(names_in(cdi_).size(), 1U);
}

TEST_F(dra_claims, sweep_keeps_unreserved_claim) {
  // The claim's pod was forcibly deleted and is still terminating on this node: the next pod of the
  // claim uses the prepared claim, and the kubelet does not prepare it again.
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  json unreserved = claim_object(claim);
  unreserved["status"]["reservedFor"] = json::array();
  cluster_.put(claim_path(claim), unreserved);
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(subject().sweep().freed, IsEmpty());
  }
  unreserved["status"].erase("reservedFor");
  cluster_.put(claim_path(claim), unreserved);
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, sweep_frees_claim_unallocated_in_two_sweeps) {
  // The controller removes the allocation together with the last reservation, and the next pod may
  // be assigned to the same node.
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  json unallocated = claim_object(claim);
  unallocated["status"] = json::object();
  cluster_.put(claim_path(claim), unallocated);
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  cluster_.put(claim_path(claim), claim_object(claim));
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  cluster_.put(claim_path(claim), unallocated);
  EXPECT_THAT(subject().sweep().freed, IsEmpty());
  EXPECT_EQ(names_in(run_).size(), 1U);
  EXPECT_THAT(subject().sweep().freed, ElementsAre("default/claim-1"));
  expect_nothing_left();
}

TEST_F(dra_claims, sweep_ignores_replies_that_are_not_claims) {
  const claim_reference claim = add_claim(1);
  subject().prepare(claim);
  cluster_.put(claim_path(claim), {{"metadata", {{"uid", ""}}}, {"message", "welcome"}});
  const claims::sweep_result result = subject().sweep();
  EXPECT_THAT(result.freed, IsEmpty());
  EXPECT_THAT(result.failure, HasSubstr("not a ResourceClaim"));
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, one_failing_claim_does_not_block_the_sweep) {
  for (const unsigned number : {1U, 2U, 3U}) {
    subject().prepare(add_claim(number));
  }
  cluster_.put(claim_path(claim_number(1)), {{"metadata", {{"uid", ""}}}});
  cluster_.erase(claim_path(claim_number(2)));
  cluster_.erase(claim_path(claim_number(3)));
  const claims::sweep_result result = subject().sweep();
  EXPECT_THAT(result.freed, ElementsAre("default/claim-2", "default/claim-3"));
  EXPECT_THAT(result.failure, HasSubstr("default/claim-1"));
}

TEST_F(dra_claims, sweep_keeps_claims_of_unknown_state) {
  subject().prepare(add_claim(1));
  cluster_.erase(claim_path(claim_number(1)));
  const auto untouched = [&](const std::string& failure) {
    const claims::sweep_result result = subject().sweep();
    EXPECT_THAT(result.freed, IsEmpty());
    EXPECT_THAT(result.failure, HasSubstr(failure));
    EXPECT_EQ(names_in(run_).size(), 1U);
    EXPECT_EQ(subject().size(), 1U);
  };
  cluster_.unreachable = true;
  untouched("connection refused");
  cluster_.unreachable = false;
  for (const int status : {401, 403, 404, 429, 500}) {
    cluster_.error_status = status;  // 404 that is not a missing object's
    untouched("sweep claim \"default/claim-1\": not allowed");
  }
  cluster_.error_status = 0;
  cluster_.set_versions({});
  untouched("the API server serves none of v1, v1beta2 and v1beta1");
  cluster_.set_versions({"v1"});
  EXPECT_EQ(subject().sweep().freed.size(), 1U);
}

// ---- the checkpoint as a file ----

TEST_F(dra_claims, damaged_checkpoint_is_replaced_by_its_copy) {
  const claim_reference claim = add_claim(1);
  const prepared_claim first = subject().prepare(claim);
  const std::string path = state_ + "/dra-checkpoint.json";
  write_text(path, read_text(path).substr(0, 40));
  EXPECT_THAT(
      start(),
      ElementsAre("read checkpoint \"" + path +
                  "\": it is incomplete (prepared claims keep running; to start without "
                  "them, remove the file and its copy that ends in .bak); used " +
                  path + ".bak instead, and renamed the damaged file to " + path + ".damaged"));
  EXPECT_EQ(read_text(path + ".damaged").size(), 40U);
  EXPECT_EQ(subject().prepare(claim), first);
  subject().unprepare(claim);
  EXPECT_THAT(start(), IsEmpty());
  expect_nothing_left();
}

TEST_F(dra_claims, two_damaged_checkpoints_change_nothing) {
  subject().prepare(add_claim(1));
  const std::string path = state_ + "/dra-checkpoint.json";
  write_text(path, "{");
  write_text(path + ".bak", "");
  EXPECT_THAT(failure_of([&] { start(); }), HasSubstr("it is incomplete"));
  EXPECT_EQ(read_text(path), "{");
  EXPECT_EQ(names_in(run_).size(), 1U);
  EXPECT_EQ(names_in(cdi_).size(), 1U);
}

TEST_F(dra_claims, fifo_as_checkpoint_does_not_block) {
  claims_.reset();
  std::filesystem::remove(state_ + "/dra-checkpoint.json");
  ASSERT_EQ(::mkfifo((state_ + "/dra-checkpoint.json").c_str(), 0600), 0);
  EXPECT_THAT(failure_of([&] { start(); }),
              HasSubstr("dra-checkpoint.json\": it is not a regular file"));
}

TEST_F(dra_claims, newer_checkpoint_is_rejected_and_kept) {
  subject().prepare(add_claim(1));
  const std::string path = state_ + "/dra-checkpoint.json";
  const std::string newer = R"({"version":7,"data":[]})";
  write_text(path, newer);
  EXPECT_EQ(failure_of([&] { start(); }),
            "read checkpoint \"" + path +
                "\": it has version 7, but this gpushm reads version 1 (install the newer gpushm "
                "again, or drain the node and remove the file and its copy that ends in .bak)");
  EXPECT_EQ(read_text(path), newer);
  EXPECT_EQ(names_in(run_).size(), 1U);
  // Recovers without a new process once the cause is removed.
  std::filesystem::copy(path + ".bak", path, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(subject().restore(), IsEmpty());
  EXPECT_EQ(subject().size(), 1U);
}

TEST_F(dra_claims, starts_empty_after_removing_newer_checkpoint) {
  subject().prepare(add_claim(1));
  const std::string path = state_ + "/dra-checkpoint.json";
  for (const std::string& each : {path, path + ".bak"}) {
    write_text(each, R"({"version":7,"data":[]})");
  }
  EXPECT_THAT(failure_of([&] { start(); }), HasSubstr("it has version 7"));
  std::filesystem::remove(path);
  EXPECT_THAT(failure_of([&] { subject().restore(); }), HasSubstr(".bak\": it has version 7"));
  std::filesystem::remove(path + ".bak");
  EXPECT_THAT(subject().restore(),
              ElementsAre("freed claim-" + uid_of(1) + ", which is not in the checkpoint"));
  EXPECT_EQ(subject().size(), 0U);
}

TEST_F(dra_claims, second_process_waits_for_state_lock) {
  gpushm::dra::resource_api api(cluster_);
  claims second({{test_driver, test_node}, cdi_, state_, "boot-1"}, api, cluster_, domains_);
  EXPECT_EQ(failure_of([&] { second.restore(); }),
            "lock state directory \"" + state_ +
                "\": another agent prepares claims on this node (this agent takes over as soon as "
                "the other one has exited"
                ")");
  subject().prepare(add_claim(1));
  claims_.reset();
  second.restore();
  EXPECT_EQ(second.size(), 1U);
}

TEST(dra_full_disk, is_reported_and_loses_nothing) {
  const temp_dir dir;
  const std::string state = dir / "state";
  std::filesystem::create_directories(state);
  // A small disk in a mount namespace of this thread, which is destroyed with the thread.
  std::string problem;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", state.c_str(), "tmpfs", 0, "size=48k") != 0) {
      problem = "requires root to create a mount namespace and a tmpfs";
      return;
    }
    memory_cluster cluster;
    directory_domains domains(dir / "run");
    gpushm::dra::resource_api api(cluster);
    claims subject({{test_driver, test_node}, dir / "cdi", state, "boot-1"}, api, cluster, domains);
    subject.restore();
    const auto add = [&](unsigned number) {
      const claim_reference claim = claim_number(number);
      cluster.put(claim_path(claim), claim_object(claim, {{.device = "share-1"}}));
      return claim;
    };
    subject.prepare(add(1));
    write_text(state + "/ballast", std::string(std::size_t{1} << 20U, 'x'));
    const std::string failure = failure_of([&] { subject.prepare(add(2)); });
    EXPECT_EQ(failure,
              "prepare claim \"default/claim-2\": write: No space left on device (ENOSPC) (free "
              "memory, or raise the limit of the file system or cgroup)");
    EXPECT_EQ(subject.size(), 1U);
    EXPECT_THAT(names_in(dir / "run"), ElementsAre("claim-" + uid_of(1)));
    EXPECT_EQ(names_in(dir / "cdi").size(), 1U);
    EXPECT_THAT(
        names_in(state),
        ElementsAre("ballast", "dra-checkpoint.json", "dra-checkpoint.json.bak", "dra.lock"));
    // An unprepare that cannot be recorded is not performed and can be retried.
    EXPECT_THAT(failure_of([&] { subject.unprepare(claim_number(1)); }), HasSubstr("ENOSPC"));
    EXPECT_EQ(subject.size(), 1U);
    std::filesystem::remove(state + "/ballast");
    subject.prepare(claim_number(2));
    subject.unprepare(claim_number(1));
    EXPECT_EQ(subject.size(), 1U);
    EXPECT_THAT(names_in(dir / "run"), ElementsAre("claim-" + uid_of(2)));
  }).join();
  if (!problem.empty()) {
    GTEST_SKIP() << problem;
  }
}

}  // namespace
}  // namespace gpushm_testing
