// SPDX-License-Identifier: Apache-2.0
// The filter of system calls of gpushm-brokerd, as the kernel's audit log shows it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;

/// Reads the records of the kernel's log from now on.
class kernel_log {
 public:
  kernel_log() : file_(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    std::array<char, 16'384> record{};
    can_read_ = file_ && ::lseek(file_.get(), 0, SEEK_END) != -1 &&
                (::read(file_.get(), record.data(), record.size()) > 0 || errno == EAGAIN);
  }
  [[nodiscard]] bool can_read() const { return can_read_; }
  /// Empty if there is no further record.
  [[nodiscard]] std::string next() const {
    std::array<char, 16'384> record{};
    for (;;) {
      const ssize_t bytes = ::read(file_.get(), record.data(), record.size());
      if (bytes > 0) {
        return {record.data(), static_cast<std::size_t>(bytes)};
      }
      if (bytes == 0 || (errno != EINTR && errno != EPIPE)) {  // EPIPE: records were lost
        return {};
      }
    }
  }

 private:
  gpushm::base::unique_fd file_;
  bool can_read_ = false;
};

/// The C library tries clone3 for each thread.
TEST(broker_system_calls, threads_leave_no_line_in_the_audit_log) {
  const kernel_log log;
  if (!log.can_read()) {
    GTEST_SKIP() << "the kernel's log cannot be read";
  }
  const gpushm_testing::temp_dir directory{0755};
  const gpushm_testing::brokerd broker(directory / "run", {"--domain", "default"});
  auto member = gpushm_testing::patient_client(directory / "run/d/default/socket");
  auto made = member.create("kv", {.size_bytes = 4096, .device = "host"});
  made.publish();
  EXPECT_GT(broker.pid(), 0);
  const std::string program = "exe=\"" + gpushm_testing::own_program("gpushm-brokerd") + "\"";
  const std::string call = "syscall=" + std::to_string(SYS_clone3) + " ";
  for (std::string record = log.next(); !record.empty(); record = log.next()) {
    const bool found =
        record.find(program) != std::string::npos && record.find(call) != std::string::npos;
    EXPECT_FALSE(found) << record;
  }
}

}  // namespace
