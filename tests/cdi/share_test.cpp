// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/cdi/document/write.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(cdi_share_device, mounts_each_domain_at_client_path) {
  const auto created = share_document({"default", "team-a.v1"}, "/srv/domains");
  EXPECT_EQ(created.kind, "gpushm.dev/share");
  EXPECT_EQ(created.version, "0.3.0");
  ASSERT_EQ(created.devices.size(), 2U);
  EXPECT_EQ(created.devices[1].name, "team-a.v1");
  ASSERT_EQ(created.devices[1].changes.mounts.size(), 1U);
  const mount& directory = created.devices[1].changes.mounts[0];
  EXPECT_EQ(directory.host_path, "/srv/domains/team-a.v1");
  EXPECT_EQ(directory.container_path, "/run/gpushm/d/team-a.v1");
  EXPECT_THAT(directory.options,
              ElementsAre("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"));
}

TEST(cdi_share_device, is_valid_with_lowest_version) {
  const auto created = share_document({"1st"});
  EXPECT_EQ(created.version, "0.5.0");
  EXPECT_EQ(created.devices[0].changes.mounts[0].host_path, "/run/gpushm/d/1st");
  const auto read = parse(to_text(created, format::yaml), "share.yaml");
  EXPECT_THAT(read.problems, IsEmpty());
  EXPECT_EQ(read.content, created);
}

TEST(cdi_ipc_device, mounts_libraries_and_preloads_one) {
  const ipc_files files{"/usr/lib/gpushm/ipc", "/usr/bin/gpushm"};
  const auto created = ipc_document({"default", "team-a"}, files, "/srv/domains");
  EXPECT_EQ(created.kind, "gpushm.dev/ipc");
  ASSERT_EQ(created.devices.size(), 2U);
  EXPECT_EQ(created.devices[1].changes.mounts,
            share_document({"default", "team-a"}, "/srv/domains").devices[1].changes.mounts);
  EXPECT_THAT(created.devices[1].changes.env, ElementsAre("GPUSHM_IPC_DOMAIN=team-a"));
  ASSERT_EQ(created.changes.mounts.size(), 1U);
  EXPECT_EQ(created.changes.mounts[0].host_path, "/usr/lib/gpushm/ipc");
  EXPECT_EQ(created.changes.mounts[0].container_path, "/run/gpushm/ipc");
  EXPECT_THAT(created.changes.mounts[0].options,
              ElementsAre("ro", "nosuid", "nodev", "rbind", "rprivate"));
  ASSERT_EQ(created.changes.hooks.size(), 1U);
  EXPECT_EQ(created.changes.hooks[0].name, "createContainer");
  EXPECT_EQ(created.changes.hooks[0].path, "/usr/bin/gpushm");
  EXPECT_THAT(
      created.changes.hooks[0].args,
      ElementsAre(
          "gpushm", "cdi", "hook", "preload", "--library", "/run/gpushm/ipc/libgpushm-ipc.so"));
  // LD_PRELOAD of the image stays.
  EXPECT_THAT(created.changes.env, IsEmpty());
  const auto read = parse(to_text(created, format::json), "ipc.json");
  EXPECT_THAT(read.problems, IsEmpty());
  EXPECT_EQ(read.content, created);
  EXPECT_EQ(ipc_document({"x"}, files, "/d", share_kind).kind, share_kind);
}

TEST(cdi_share_device, invalid_domain_name_is_rejected) {
  try {
    static_cast<void>(share_document({"default", "my domain"}));
    FAIL() << "accepted";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::invalid_argument);
    EXPECT_EQ(failure.object(), "my domain");
    EXPECT_EQ(failure.next_step(), "rename the domain: gpushm serve --domain NAME");
  }
}

}  // namespace
}  // namespace gpushm::cdi
