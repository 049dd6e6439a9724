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
  ipc_facts all;
  all.installed = all.loaded = "/run/gpushm/ipc/libgpushm-ipc.so";
  all.entries = {{"/run/gpushm/ipc/libgpushm-ipc.so", true, ""}};
  all.glibc = "2.36";
  all.domain.reachable = true;
  all.domain.domain = "a";
  all.domain.socket = "/run/gpushm/d/a/socket";
  all.shm_is_tmpfs = true;
  all.shm_free_bytes = 64UL << 20U;
  all.soft_descriptors = 65'536;
  all.hard_descriptors = 1'048'576;
  return all;
}

check found(const ipc_facts& all, const std::string& id) {
  for (const check& each : examine_ipc(all)) {
    if (each.id == id) {
      return each;
    }
  }
  ADD_FAILURE() << "no check " << id;
  return {};
}

void expect_advised(const check& each, verdict result, const std::string& seen) {
  EXPECT_EQ(each.result, result) << each.seen;
  EXPECT_THAT(each.seen, HasSubstr(seen));
  EXPECT_NE(each.why, "") << each.seen;
  EXPECT_NE(each.remedy, "") << each.seen;
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
  ipc_facts all = good();
  all.loaded.clear();
  all.entries = {{"/usr/local/vgpu/libvgpu.so", true, ""}};
  expect_advised(found(all, "ipc-library"),
                 verdict::problem,
                 "is not preloaded; also preloaded: /usr/local/vgpu/libvgpu.so");
  all.installed.clear();
  expect_advised(found(all, "ipc-library"), verdict::problem, "neither preloaded nor found");
  EXPECT_THAT(found(all, "ipc-library").remedy, HasSubstr("gpushm.dev/ipc=DOMAIN"));
}

TEST(ipc_checks, entry_that_the_loader_cannot_load_is_a_problem) {
  ipc_facts all = good();
  all.loaded.clear();
  all.entries = {{"/x/libgpushm-ipc.so", false, "No such file or directory"}};
  expect_advised(found(all, "ipc-library"),
                 verdict::problem,
                 "LD_PRELOAD names /x/libgpushm-ipc.so, which is not loaded: No such file");
  all.entries[0].problem.clear();  // another architecture, or a missing symbol
  expect_advised(found(all, "ipc-library"), verdict::problem, "which is not loaded");
  EXPECT_THAT(found(all, "ipc-library").remedy, HasSubstr("LD_DEBUG"));
}

TEST(ipc_checks, old_glibc_is_a_problem_and_musl_beside_it_a_note) {
  ipc_facts all = good();
  for (const char* enough : {"2.28", "2.100", "3.0"}) {
    all.glibc = enough;
    EXPECT_EQ(found(all, "ipc-loader").result, verdict::ok) << enough;
  }
  for (const char* old : {"2.27", "2.9", "1.99", "", "x"}) {
    all.glibc = old;
    expect_advised(found(all, "ipc-loader"), verdict::problem, "glibc");
  }
  all = good();
  all.other_loaders = {"/lib/ld-musl-x86_64.so.1"};
  EXPECT_EQ(found(all, "ipc-loader").result, verdict::note);
  all.secure = true;
  expect_advised(found(all, "ipc-loader"), verdict::warning, "other rights");
}

TEST(ipc_checks, switch_is_a_problem) {
  ipc_facts all = good();
  all.switched_off = true;
  expect_advised(found(all, "ipc-switch"), verdict::problem, "GPUSHM_IPC=0");
}

TEST(ipc_checks, missing_domain_is_a_warning_that_says_what_works) {
  ipc_facts all = good();
  all.chosen_domain = "b";
  all.domain.reachable = false;
  all.domain.problem = "connect \"/run/gpushm/d/b/socket\": the socket does not exist";
  const check made = found(all, "ipc-domain");
  expect_advised(made, verdict::warning, "none (GPUSHM_IPC_DOMAIN=b): connect ");
  EXPECT_THAT(made.why, HasSubstr("GPUSHM_IPC_EVENTS=complete"));
}

TEST(ipc_checks, shm_must_be_a_tmpfs_with_room) {
  ipc_facts all = good();
  all.shm_free_bytes = 4096;
  expect_advised(found(all, "ipc-shm"), verdict::problem, "4 KiB free");
  all.shm_is_tmpfs = false;
  expect_advised(found(all, "ipc-shm"), verdict::problem, "not a tmpfs");
  all.shm_problem = "No such file or directory";
  expect_advised(found(all, "ipc-shm"), verdict::problem, "/dev/shm: No such file");
}

TEST(ipc_checks, few_numbers_are_a_warning_with_their_gib) {
  ipc_facts all = good();
  all.soft_descriptors = 1024;
  all.hard_descriptors = 4096;
  expect_advised(found(all, "ipc-descriptors"), verdict::warning, "3072 numbers");
  EXPECT_THAT(found(all, "ipc-descriptors").seen, HasSubstr("59 GiB"));
  all.hard_descriptors = 1'048'576;
  EXPECT_EQ(found(all, "ipc-descriptors").result, verdict::note);
  EXPECT_THAT(found(all, "ipc-descriptors").seen, HasSubstr("1260 GiB"));
}

TEST(ipc_checks, mps_is_named_as_not_measured) {
  ipc_facts all = good();
  all.mps = true;
  EXPECT_EQ(found(all, "ipc-mps").result, verdict::note);
  EXPECT_THAT(found(all, "ipc-mps").why, HasSubstr("not measured"));
}

}  // namespace
}  // namespace gpushm::inspect
