// SPDX-License-Identifier: Apache-2.0
#include "container/oci_config.hpp"

#include <gtest/gtest.h>

#include "process/harness_error.hpp"

namespace gpushm_testing {
namespace {

using nlohmann::json;

container_options minimal() {
  container_options options;
  options.argv = {"/bin/true"};
  return options;
}

TEST(oci_config, gives_no_privilege) {
  const auto config = oci_config(minimal(), "/test");
  for (const char* set : {"bounding", "effective", "inheritable", "permitted", "ambient"}) {
    EXPECT_EQ(config["process"]["capabilities"][set], json::array()) << set;
  }
  EXPECT_EQ(config["process"]["noNewPrivileges"], true);
  EXPECT_EQ(config["process"].count("rlimits"), 0U);
  EXPECT_EQ(config["root"]["readonly"], true);
}

TEST(oci_config, has_every_namespace) {
  auto options = minimal();
  EXPECT_EQ(oci_config(options, "/test")["linux"]["namespaces"].size(), 6U);
  options.user_ns = user_namespace{200'000, 1'000};
  const auto config = oci_config(options, "/test");
  EXPECT_EQ(config["linux"]["namespaces"].size(), 7U);
  EXPECT_EQ(config["linux"]["uidMappings"][0]["hostID"], 200'000);
  EXPECT_EQ(config["linux"]["gidMappings"][0]["size"], 1'000);
}

TEST(oci_config, allows_exactly_the_devices_given) {
  auto options = minimal();
  EXPECT_EQ(oci_config(options, "/test")["linux"]["resources"]["devices"].size(), 1U);
  options.device_nodes = {"/dev/null"};
  const auto rules = oci_config(options, "/test")["linux"]["resources"]["devices"];
  ASSERT_EQ(rules.size(), 2U);
  EXPECT_EQ(rules[0]["allow"], false);
  EXPECT_EQ(rules[1]["major"], 1);
  EXPECT_EQ(rules[1]["minor"], 3);
}

TEST(oci_config, a_device_that_is_none_is_an_error) {
  auto options = minimal();
  options.device_nodes = {"/etc"};
  EXPECT_THROW((void)oci_config(options, "/test"), harness_error);
}

}  // namespace
}  // namespace gpushm_testing
