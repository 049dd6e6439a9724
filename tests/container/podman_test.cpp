// SPDX-License-Identifier: Apache-2.0
// The distribution's podman, with the reference implementation of CDI inside, reads documents that
// gpushm wrote: containers see exactly what these say, and share memory through the share device.

#include "container/podman.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "process/child.hpp"
#include "process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::patience;
using gpushm_testing::podman;
using gpushm_testing::podman_options;
using gpushm_testing::run_program;
using std::chrono::seconds;
using ::testing::HasSubstr;

class podman_cdi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_podman()) {
      GTEST_SKIP() << *reason;
    }
  }
};

TEST_F(podman_cdi, runs) {
  const podman engine;
  std::ofstream(engine.cdi_directory() + "/x.yaml") << R"(cdiVersion: 0.5.0
kind: test.dev/gpu
devices:
- name: "0"
  containerEdits:
    env: ["A=b"]
    deviceNodes: [{path: /dev/fake0, hostPath: /dev/fuse}]
)";
  podman_options options;
  options.devices = {"test.dev/gpu=0"};
  options.argv = {"/bin/sh", "-c", "echo $A /dev/f*; gpushm version"};
  const auto done = run_program(engine.run(options), patience(seconds(60)));
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_EQ(done.out, "b /dev/fake0 /dev/fd /dev/full\ngpushm 0.1.0\n");
}

}  // namespace
}  // namespace gpushm_tests
