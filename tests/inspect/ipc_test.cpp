// SPDX-License-Identifier: Apache-2.0
// The rules of `gpushm doctor --ipc`.

#include "inspect/doctor/ipc.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpushm::inspect {
namespace {

using ::testing::HasSubstr;

/// A container of the CDI device gpushm.dev/ipc, in which everything is as it should be.
ipc_facts good() {
  ipc_facts facts;
  facts.installed = facts.loaded = "/run/gpushm/ipc/libgpushm-ipc.so";
  facts.entries = {{"/run/gpushm/ipc/libgpushm-ipc.so", true, ""}};
  facts.glibc = "2.36";
  facts.domain.reachable = true;
  facts.domain.domain = "a";
  facts.domain.socket = "/run/gpushm/d/a/socket";
  facts.shm_is_tmpfs = true;
  facts.shm_free_bytes = 64UL << 20U;
  facts.soft_descriptors = 65'536;
  facts.hard_descriptors = 1'048'576;
  return facts;
}

check found(const ipc_facts& facts, const std::string& id) {
  for (const check& each : examine_ipc(facts)) {
    if (each.id == id) {
      return each;
    }
  }
  ADD_FAILURE() << "no check " << id;
  return {};
}

void expect_advised(const check& check, verdict result, const std::string& seen) {
  EXPECT_EQ(check.result, result) << check.seen;
  EXPECT_THAT(check.seen, HasSubstr(seen));
  EXPECT_NE(check.why, "") << check.seen;
  EXPECT_NE(check.remedy, "") << check.seen;
}

TEST(ipc_checks, container_of_the_device_has_no_problem) {
  for (const check& each : examine_ipc(good())) {
    EXPECT_EQ(each.result, each.id == "ipc-mps" ? verdict::not_applicable : verdict::ok)
        << each.id << ": " << each.seen;
    EXPECT_EQ(each.section, "CUDA IPC of unchanged programs");
  }
  EXPECT_EQ(found(good(), "ipc-library").seen,
            "/run/gpushm/ipc/libgpushm-ipc.so is loaded by /etc/ld.so.preload");
}

TEST(ipc_checks, library_that_nothing_preloads_is_a_problem) {
  ipc_facts facts = good();
  facts.loaded.clear();
  facts.entries = {{"/usr/local/vgpu/libvgpu.so", true, ""}};
  expect_advised(found(facts, "ipc-library"),
                 verdict::problem,
                 "is not preloaded; also preloaded: /usr/local/vgpu/libvgpu.so");
  facts.installed.clear();
  expect_advised(found(facts, "ipc-library"), verdict::problem, "neither preloaded nor found");
  EXPECT_THAT(found(facts, "ipc-library").remedy, HasSubstr("gpushm.dev/ipc=DOMAIN"));
}

TEST(ipc_checks, entry_that_the_loader_cannot_load_is_a_problem) {
  ipc_facts facts = good();
  facts.loaded.clear();
  facts.entries = {{"/x/libgpushm-ipc.so", false, "No such file or directory"}};
  expect_advised(found(facts, "ipc-library"),
                 verdict::problem,
                 "LD_PRELOAD names /x/libgpushm-ipc.so, which is not loaded: No such file");
  facts.entries[0].problem.clear();  // another architecture, or a missing symbol
  expect_advised(found(facts, "ipc-library"), verdict::problem, "which is not loaded");
  EXPECT_THAT(found(facts, "ipc-library").remedy, HasSubstr("LD_DEBUG"));
}

TEST(ipc_checks, old_glibc_is_a_problem_and_musl_beside_it_a_note) {
  ipc_facts facts = good();
  for (const char* enough : {"2.28", "2.100", "3.0"}) {
    facts.glibc = enough;
    EXPECT_EQ(found(facts, "ipc-loader").result, verdict::ok) << enough;
  }
  for (const char* old : {"2.27", "2.9", "1.99", "", "x"}) {
    facts.glibc = old;
    expect_advised(found(facts, "ipc-loader"), verdict::problem, "glibc");
  }
  facts = good();
  facts.other_loaders = {"/lib/ld-musl-x86_64.so.1"};
  EXPECT_EQ(found(facts, "ipc-loader").result, verdict::note);
  facts.secure = true;
  expect_advised(found(facts, "ipc-loader"), verdict::warning, "other rights");
}

TEST(ipc_checks, switch_is_a_problem) {
  ipc_facts all = good();
  all.switched_off = true;
  expect_advised(found(all, "ipc-switch"), verdict::problem, "GPUSHM_IPC=0");
}

TEST(ipc_checks, missing_domain_is_a_warning_that_says_what_works) {
  ipc_facts facts = good();
  facts.chosen_domain = "b";
  facts.domain.reachable = false;
  facts.domain.problem = "connect \"/run/gpushm/d/b/socket\": the socket does not exist";
  const check made = found(facts, "ipc-domain");
  expect_advised(made, verdict::warning, "none (GPUSHM_IPC_DOMAIN=b): connect ");
  EXPECT_THAT(made.why, HasSubstr("GPUSHM_IPC_EVENTS=complete"));
}

TEST(ipc_checks, shm_must_be_a_tmpfs_with_room) {
  ipc_facts facts = good();
  facts.shm_free_bytes = 4096;
  expect_advised(found(facts, "ipc-shm"), verdict::problem, "4 KiB free");
  facts.shm_is_tmpfs = false;
  expect_advised(found(facts, "ipc-shm"), verdict::problem, "not a tmpfs");
  facts.shm_problem = "No such file or directory";
  expect_advised(found(facts, "ipc-shm"), verdict::problem, "/dev/shm: No such file");
}

TEST(ipc_checks, few_numbers_are_a_warning_with_their_gib) {
  ipc_facts facts = good();
  facts.soft_descriptors = 1024;
  facts.hard_descriptors = 4096;
  expect_advised(found(facts, "ipc-descriptors"), verdict::warning, "3072 numbers");
  EXPECT_THAT(found(facts, "ipc-descriptors").seen, HasSubstr("59 GiB"));
  facts.hard_descriptors = 1'048'576;
  EXPECT_EQ(found(facts, "ipc-descriptors").result, verdict::note);
  EXPECT_THAT(found(facts, "ipc-descriptors").seen, HasSubstr("1260 GiB"));
}

TEST(ipc_checks, mps_is_named_as_not_measured) {
  ipc_facts all = good();
  all.mps = true;
  EXPECT_EQ(found(all, "ipc-mps").result, verdict::note);
  EXPECT_THAT(found(all, "ipc-mps").why, HasSubstr("not measured"));
}

}  // namespace
}  // namespace gpushm::inspect
