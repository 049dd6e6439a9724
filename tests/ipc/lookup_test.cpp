// SPDX-License-Identifier: Apache-2.0
// Programs that are not concerned with IPC work under libgpushm-ipc.so as without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/files/sanitizers.hpp"
#include "tests/ipc/peer.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace gpushm_tests::ipc {
namespace {

using gpushm_testing::exited;
using gpushm_testing::own_library;
using gpushm_testing::own_program;
using gpushm_testing::run_program;
using gpushm_testing::run_result;
using gpushm_testing::spawn_options;
using gpushm_testing::temp_dir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ipc_lookup : public ::testing::Test {
 protected:
  /// Runs the program with the libraries preloaded in this order.
  [[nodiscard]] run_result run(std::vector<std::string> argv,
                               const std::string& preloaded = library(),
                               std::vector<std::pair<std::string, std::string>> env = {}) const {
    spawn_options options;
    options.argv = std::move(argv);
    options.argv.insert(options.argv.begin(), {"env", "LD_PRELOAD=" + preloaded});
    options.env = gpus_.environment();
    options.env.insert(options.env.end(), env.begin(), env.end());
    run_result done = run_program(options, limit);
    EXPECT_THAT(done.err, Not(HasSubstr("cannot be preloaded")));
    return done;
  }

 private:
  gpushm::fake::fake_gpus gpus_;
};

TEST_F(ipc_lookup, names_lead_where_they_do_without_library) {
  for (const std::string& preloaded : {std::string(), library()}) {
    const run_result done = run({own_program("ipc_names")}, preloaded);
    EXPECT_EQ(done.status, exited(0)) << "preloaded: " << preloaded << "\n" << done.out << done.err;
    EXPECT_THAT(done.out, IsEmpty());
  }
}

TEST_F(ipc_lookup, names_if_switched_off) {
  const run_result done = run({own_program("ipc_names")}, library(), {{"GPUSHM_IPC", "0"}});
  EXPECT_EQ(done.status, exited(0)) << done.out << done.err;
}

TEST_F(ipc_lookup, next_malloc_of_another_preloaded_library) {
  if (gpushm::base::under_sanitizer) {
    GTEST_SKIP() << "the sanitizers have their own malloc";
  }
  const temp_dir directory;
  const std::string wrapper = own_library("ipc_wrap_malloc.so");
  int runs = 0;
  for (const std::string& order : {wrapper + ":" + library(), library() + ":" + wrapper}) {
    const std::string report = directory / std::to_string(runs++);
    const run_result done =
        run({own_program("ipc_names")}, order, {{"WRAP_MALLOC_REPORT", report}});
    EXPECT_EQ(done.status, exited(0)) << order << "\n" << done.out << done.err;
    unsigned long calls = 0;
    std::ifstream(report) >> calls;
    EXPECT_GT(calls, 0U) << order;
  }
}

TEST_F(ipc_lookup, python_and_its_libraries) {
  const run_result done = run({"/usr/bin/python3",
                               "-c",
                               "import ctypes, ssl, threading, socket, hashlib, subprocess\n"
                               "t = threading.Thread(target=lambda: None); t.start(); t.join()\n"
                               "ssl.create_default_context()\n"
                               "subprocess.run(['true'], check=True)\n"
                               "print(ctypes.CDLL(None).getpid() > 0)"});
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_EQ(done.out, "True\n");
  EXPECT_THAT(done.err, IsEmpty());
}

TEST_F(ipc_lookup, shells_and_their_pipes) {
  const run_result done = run({"sh", "-c", "for i in 1 2 3; do echo $i; done | sort -r | head -1"});
  EXPECT_EQ(done.status, exited(0)) << done.err;
  EXPECT_EQ(done.out, "3\n");
  EXPECT_THAT(done.err, IsEmpty());
}

struct sanitizer {
  const char* name;
  const char* mistake;
  const char* message;
};

TEST_F(ipc_lookup, programs_with_sanitizers) {
  for (const sanitizer& each : {sanitizer{"address", "overflow", "heap-buffer-overflow"},
                                sanitizer{"thread", "race", "data race"}}) {
    const auto program =
        gpushm_testing::find_own_program(std::string("ipc_") + each.name + "_sanitized");
    if (!program) {
      GTEST_SKIP() << "built by clang without sanitizers only";
    }
    // clang 14's ThreadSanitizer does not start where the kernel spreads mappings widely.
    if (!run({*program}, "").status.success()) {
      GTEST_SKIP() << each.name << ": does not run here without the library either";
    }
    const run_result right = run({*program});
    EXPECT_EQ(right.status, exited(0)) << each.name << right.err;
    EXPECT_EQ(right.out, "a\n");
    const run_result wrong = run({*program, each.mistake});
    EXPECT_NE(wrong.status, exited(0)) << each.name;
    EXPECT_THAT(wrong.err, HasSubstr(each.message));
  }
}

TEST_F(ipc_lookup, library_needs_only_the_c_library) {
  const run_result done = run({"ldd", library()}, "");
  ASSERT_EQ(done.status, exited(0)) << done.err;
  for (const char* const other : {"libstdc++", "libgcc_s", "libcuda", "libgpushm"}) {
    EXPECT_THAT(done.out, Not(HasSubstr(other)));
  }
}

}  // namespace
}  // namespace gpushm_tests::ipc
