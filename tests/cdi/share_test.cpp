// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cdi/document/parse.hpp"
#include "cdi/document/share_device.hpp"
#include "cdi/document/write.hpp"
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
