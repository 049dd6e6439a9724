// SPDX-License-Identifier: Apache-2.0
// `gpushm ls --ipc`: registrations by exporter, from a broker of this process.

#include "apps/gpushm/segment/registrations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "base/files/unique_fd.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/descriptor.h"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

registration made(std::uint32_t number, const std::string& program, bool is_memory) {
  registration one;
  one.number = number;
  one.program = program;
  one.is_memory = is_memory;
  one.pid = 1;
  one.pid_namespace = 4'026'532'711;
  one.uid = 1000;
  one.broker_pid = 77;
  return one;
}

TEST(registrations, are_counted_for_each_exporter) {
  std::vector<registration> registrations{
      made(5, "b", true), made(6, "a", false), made(7, "b", true)};
  registrations.push_back(made(8, "b", true));
  registrations.back().pid_namespace = 4'026'532'712;  // another container: PID 1, too
  registrations.back().broker_pid = 78;
  const auto exporters = exporters_of(registrations);
  ASSERT_EQ(exporters.size(), 3U);
  EXPECT_EQ(exporters[0].first.program, "a");
  EXPECT_EQ(exporters[0].events, 1U);
  EXPECT_EQ(exporters[1].memory, 2U);
  EXPECT_EQ(exporters[2].memory, 1U);
  EXPECT_EQ(exporters_text(exporters),
            "EXPORTER                     UID  PID NAMESPACE  MEMORY  EVENT FILES\n"
            "a (pid 1, the broker's 77)  1000  4026532711          0            1\n"
            "b (pid 1, the broker's 77)  1000  4026532711          2            0\n"
            "b (pid 1, the broker's 78)  1000  4026532712          1            0\n");
  EXPECT_EQ(to_json(exporters[1])["memory"], 2);
}

TEST(registrations, names_of_programs_cannot_control_a_terminal) {
  registration one = made(9, "x\x1b[31m", true);
  one.broker_pid = 0;
  one.pid_namespace = 0;
  const std::string text = registrations_text({one});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("9  gpu memory  x\\x1b[31m (pid 1)"));
  EXPECT_EQ(to_json(one)["program"], "x\\x1b[31m");
}

TEST(registrations, are_read_from_the_broker) {
  const gpushm_testing::temp_dir directory;
  broker_options options;
  options.socket_path = directory / "socket";
  const broker served = broker::start(options);
  client connected = client::connect({.socket_path = served.socket_path()});
  EXPECT_TRUE(list_registrations(connected).empty());
  // A regular file of a tmpfs, as the driver's file of events is.
  std::string path = "/dev/shm/gpushm-registrations-XXXXXX";
  const base::unique_fd file(::mkstemp(path.data()));
  ASSERT_TRUE(file) << path;
  ::unlink(path.c_str());
  gpushm_descriptor* owned = nullptr;
  ASSERT_EQ(gpushm_client_register_descriptor(connected.handle(), file.get(), 4711, 0, &owned),
            GPUSHM_OK);
  const std::unique_ptr<gpushm_descriptor, decltype(&gpushm_descriptor_close)> closer(
      owned, &gpushm_descriptor_close);
  const auto registrations = list_registrations(connected);
  ASSERT_EQ(registrations.size(), 1U);
  EXPECT_EQ(registrations[0].number, 4711U);
  EXPECT_FALSE(registrations[0].is_memory);
  EXPECT_EQ(registrations[0].pid, ::getpid());
  EXPECT_EQ(registrations[0].uid, ::getuid());
  EXPECT_FALSE(registrations[0].program.empty());
  EXPECT_NE(registrations[0].pid_namespace, 0U);
  EXPECT_THAT(exporters_text(exporters_of(registrations)), StartsWith("EXPORTER"));
}

}  // namespace
}  // namespace gpushm::cli
