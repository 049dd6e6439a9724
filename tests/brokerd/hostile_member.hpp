// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gpushm/gpushm.hpp"
#include "testing/brokerd/brokerd.hpp"
#include "testing/process/patient_client.hpp"
#include "testing/process/temp_dir.hpp"

namespace gpushm_tests {

/// gpushm-brokerd under gpushm-keeper, for members that are hostile to it.
class brokerd_with_hostile_member : public testing::Test {
 protected:
  explicit brokerd_with_hostile_member(const std::string& domains = "default,other",
                                       unsigned open_files = 0)
      : broker_(run_dir_, {"--domain", domains}, open_files) {}
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  [[nodiscard]] std::string log() { return broker_.keeper().output().all_output(); }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_;
};

}  // namespace gpushm_tests
