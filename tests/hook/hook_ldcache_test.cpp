// SPDX-License-Identifier: Apache-2.0
// `update-ldcache`: the host's ldconfig reads a root that an attacker created.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "base/files/sanitizers.hpp"
#include "containers/elf/ld_cache.hpp"
#include "tests/hook/fixture.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::exited;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* not_up_to_date =
    "gpushm: warning: the container's library cache is not up to date: ";

class cdi_hook_ldcache : public cdi_hook {
 protected:
  void SetUp() override {
    if (!can_mount()) {
      GTEST_SKIP() << "this process may not mount";
    }
    cdi_hook::SetUp();
  }
  void put_driver() const {
    put_file(inside("/opt/driver/libnvidia-ml.so.550.1.2"), elf_stub("libnvidia-ml.so.1"));
  }
  [[nodiscard]] std::vector<gpushm::elf::ld_cache_entry> cached() const {
    const std::string cache = content_of(inside("/etc/ld.so.cache"));
    return gpushm::elf::parse_ld_cache(std::as_bytes(std::span(cache)))
        .value_or(std::vector<gpushm::elf::ld_cache_entry>());
  }
  /// Replaces ldconfig with a program whose behaviour `mode` selects.
  [[nodiscard]] gpushm_testing::run_result run_other(const std::string& mode,
                                                     const std::string& script = "exec \"$@\"",
                                                     bool own_mounts = false) const {
    put_file(inside("/mode"), mode);
    return run({"update-ldcache",
                "--ldconfig-path",
                gpushm_testing::own_program("confined_ldconfig"),
                "--folder",
                "/opt/driver"},
               script,
               own_mounts);
  }
  [[nodiscard]] std::string warning_about(const std::string& cause) const {
    return std::string(not_up_to_date) + "create the library cache \"" +
           gpushm_testing::own_program("confined_ldconfig") + "\": " + cause + "\n";
  }
};

TEST_P(cdi_hook_ldcache, container_cache_contains_folders) {
  put_driver();
  for (const bool has_configuration : {false, true}) {
    fs::remove_all(inside("/etc"));
    if (has_configuration) {
      put_file(inside("/etc/ld.so.conf"), "# no include of other files\n");
    }
    const auto result = run({"update-ldcache", "--folder", "/opt/driver", "--folder", "/none"},
                            "umask 077; exec \"$@\"");
    EXPECT_EQ(result.status, exited(0));
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(cached(),
                ElementsAre(gpushm::elf::ld_cache_entry{"libnvidia-ml.so.1",
                                                        "/opt/driver/libnvidia-ml.so.1"}));
    EXPECT_EQ(content_of(inside("/etc/ld.so.conf.d/00-gpushm-2-driver.conf")),
              "/opt/driver\n/none\n");
    EXPECT_EQ(
        content_of(inside("/etc/ld.so.conf")),
        has_configuration ? "# no include of other files\n" : "include /etc/ld.so.conf.d/*.conf\n");
    struct stat about {};
    ASSERT_EQ(::stat(inside("/etc/ld.so.cache").c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777U, 0644U);
    ASSERT_EQ(::stat(inside("/etc/ld.so.conf.d").c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777U, 0755U);
  }
}

TEST_P(cdi_hook_ldcache, folder_lines_are_only_paths) {
  static_cast<void>(run({"update-ldcache",
                         "--folder",
                         "/a\n/b",
                         "--folder",
                         "include /x",
                         "--folder",
                         "/c",
                         "--folder",
                         "/d#"}));
  EXPECT_EQ(content_of(inside("/etc/ld.so.conf.d/00-gpushm-2-driver.conf")), "/c\n");
}

TEST_P(cdi_hook_ldcache, works_in_user_namespace) {
  put_driver();
  const auto result = run({"update-ldcache", "--folder", "/opt/driver"},
                          "exec unshare --user --map-root-user --mount \"$@\"");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(cached().size(), 1U);
}

TEST_P(cdi_hook_ldcache, closed_standard_output_is_not_reused) {
  put_driver();
  EXPECT_EQ(run({"update-ldcache", "--folder", "/opt/driver"}, "exec \"$@\" >&- 2>&-").status,
            exited(0));
  EXPECT_EQ(cached().size(), 1U);
}

TEST_P(cdi_hook_ldcache, mounted_configuration_is_kept) {
  put_driver();
  put_file(inside("/etc/ld.so.conf"), "");
  put_file(cli_.directory() / "conf", "/other\n");
  const auto result = run({"update-ldcache", "--folder", "/opt/driver"},
                          "mount --bind \"" + (cli_.directory() / "conf") + "\" \"" + root() +
                              "/etc/ld.so.conf\" && exec \"$@\"",
                          true);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(cached().size(), 1U);
  EXPECT_EQ(content_of(cli_.directory() / "conf"), "/other\n");
}

// ---- what ldconfig can do ----

TEST_P(cdi_hook_ldcache, ldconfig_can_read_the_root_and_write_nothing) {
  put_file(inside("/etc/group"), "");
  ASSERT_EQ(::mknod(inside("/null").c_str(), S_IFCHR | 0666U, (1U << 8U) | 3U), 0);
  put_file(inside("/script"), "#!/mode\n", 0755);
  // Like a faulty runtime: descriptors of the host, blocked signals, an unusual umask.
  const auto result = run_other(
      "report",
      "mkdir -p \"" + root() + "/proc\" \"" + root() + "/sys\"; mount -t proc proc \"" + root() +
          "/proc\"; mount -t sysfs sysfs \"" + root() + "/sys\"; mount -t proc proc \"" + root() +
          "/sys\"; exec 7</ 8>/dev/null 9</etc; "
          "LD_LIBRARY_PATH=/evil IMAGE=x; export LD_LIBRARY_PATH IMAGE; umask 0; "
          "trap '' TERM PIPE; exec \"$@\"",
      true);
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.err,
            warning_about(
                "exit status 3: pid 1, environment, descriptors 0 1 2, capabilities 0 bounding 0, "
                "no new privileges 1, SIGTERM blocked 0, SIGPIPE default 1, umask 77, could "
                "write-here, here conf here"));
  EXPECT_FALSE(fs::exists(inside("/etc/made")));
}

TEST_P(cdi_hook_ldcache, excessive_output_is_dropped) {
  const auto start = steady_clock::now();
  const auto result = run_other("flood");
  EXPECT_LT(steady_clock::now() - start, gpushm_testing::scaled_timeout(seconds(20)));
  EXPECT_EQ(result.status, exited(0));
  EXPECT_LT(result.err.size(), 5'000U);
  EXPECT_THAT(result.err, StartsWith(warning_about("timed out after 10 seconds").substr(0, 100)));
}

TEST_P(cdi_hook_ldcache, invalid_cache_is_not_installed) {
  put_file(inside("/etc/ld.so.cache"), "the image's");
  for (const char* mode : {"big", "link", "garbage"}) {
    EXPECT_EQ(run_other(mode).err, warning_about("its output is not an ld.so.cache")) << mode;
    EXPECT_EQ(content_of(inside("/etc/ld.so.cache")), "the image's") << mode;
  }
}

TEST_P(cdi_hook_ldcache, scripts_and_dynamic_programs_are_rejected) {
  if (gpushm::base::under_sanitizer) {
    GTEST_SKIP() << "the sanitizer's report needs more address space than the child may use";
  }
  put_file(cli_.directory() / "ldconfig", "#!/bin/sh\ntouch /made\n", 0755);
  // The image's interpreter.
  fs::create_directories(inside("/bin"));
  fs::copy_file("/bin/sh", inside("/bin/sh"));
  for (const std::string& program : {cli_.directory() / "ldconfig", std::string("/bin/sh")}) {
    const auto result =
        run({"update-ldcache", "--ldconfig-path", program, "--folder", "/opt/driver"});
    EXPECT_EQ(result.status, exited(0));
    EXPECT_THAT(result.err, HasSubstr("execveat: "));
    EXPECT_THAT(result.err, HasSubstr("--ldconfig-path must be a static program"));
  }
}

TEST_P(cdi_hook_ldcache, host_without_ldconfig_is_a_warning) {
  const auto result = run({"update-ldcache", "--ldconfig-path", "/none", "--folder", "/lib"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.err,
            std::string(not_up_to_date) +
                "create the library cache \"/none\": the host has no ldconfig\n");
}

TEST_P(cdi_hook_ldcache, missing_mount_permission_is_a_warning) {
  if (!gpushm_testing::find_in_path("setpriv")) {
    GTEST_SKIP() << "no setpriv in $PATH";
  }
  const auto result =
      run({"update-ldcache", "--folder", "/lib"}, "exec setpriv --bounding-set -sys_admin \"$@\"");
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(
      result.err,
      std::string(not_up_to_date) +
          "confine ldconfig: open_tree: Operation not permitted (EPERM) (it needs "
          "CAP_SYS_ADMIN in the container's user namespace, and mounts permitted by seccomp)\n");
  EXPECT_FALSE(fs::exists(inside("/etc/ld.so.cache")));
}

// ---- hostile images ----

TEST_P(cdi_hook_ldcache, read_only_root_is_a_warning) {
  const auto result = run({"update-ldcache", "--folder", "/lib"},
                          "mount --bind -o ro " + root() + " " + root() +
                              " && mount -o remount,bind,ro " + root() + " && exec \"$@\"",
                          true);
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_THAT(result.err, StartsWith(std::string(not_up_to_date) + "change the container's root"));
  EXPECT_THAT(result.err, HasSubstr("(EROFS)"));

  const auto links = run({"create-symlinks", "--link", "a::/usr/lib/b", "--link", "a::/c"},
                         "mount --bind " + root() + " " + root() + " && mount -o remount,bind,ro " +
                             root() + " && exec \"$@\"",
                         true);
  EXPECT_EQ(links.status, exited(0)) << links.err;
  EXPECT_THAT(links.err, HasSubstr("gpushm: warning: change the container's root"));
  EXPECT_THAT(links.err, HasSubstr("gpushm: warning: create a link in the container \"/c\""));
}

TEST_P(cdi_hook_ldcache, hostile_image_causes_no_write_outside) {
  put_link(inside("/etc/ld.so.conf.d"), outside());
  put_link(inside("/etc/ld.so.conf"), outside() + "/secret");
  put_link(inside("/etc/ld.so.cache"), outside() + "/secret");
  put_link(inside("/var/cache/ldconfig"), "../../../../outside");
  static_cast<void>(run({"update-ldcache", "--folder", "/lib"}));
  expect_outside_untouched();
  fs::remove_all(inside("/etc"));
  put_link(inside("/etc"), "../../outside");
  static_cast<void>(run({"update-ldcache", "--folder", "/lib"}));
  expect_outside_untouched();
}

TEST_P(cdi_hook_ldcache, pipe_as_configuration_is_rejected) {
  for (const std::string place : {"/etc/ld.so.conf", "/etc/ld.so.conf.d/x.conf"}) {
    fs::remove_all(inside("/etc"));
    fs::create_directories(inside("/etc/ld.so.conf.d"));
    ASSERT_EQ(::mkfifo(inside(place).c_str(), 0666), 0);
    const auto start = steady_clock::now();
    const auto result = run({"update-ldcache", "--folder", "/lib"});
    EXPECT_LT(steady_clock::now() - start, gpushm_testing::wait_limit(seconds(5)));
    EXPECT_EQ(result.status, exited(0));
    EXPECT_EQ(result.err,
              std::string(not_up_to_date) + "create the library cache \"" + place +
                  "\": it is not a regular file\n");
  }
}

TEST_P(cdi_hook_ldcache, other_pipe_blocks_ten_seconds_at_most) {
  fs::create_directories(inside("/etc"));
  ASSERT_EQ(::mkfifo(inside("/pipe").c_str(), 0666), 0);
  put_file(inside("/etc/ld.so.conf"), "include /pipe\n");
  const auto start = steady_clock::now();
  const auto result = run({"update-ldcache", "--folder", "/lib"});
  EXPECT_LT(steady_clock::now() - start, gpushm_testing::scaled_timeout(seconds(15)));
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.err,
            std::string(not_up_to_date) +
                "create the library cache \"/sbin/ldconfig\": timed out after 10 seconds\n");
}

// ---- races ----

std::map<std::string, std::string> listing(const std::string& directory) {
  std::map<std::string, std::string> texts;
  for (const auto& each : fs::recursive_directory_iterator(directory)) {
    texts.emplace(each.path(),
                  each.is_symlink()        ? fs::read_symlink(each.path()).string()
                  : each.is_regular_file() ? content_of(each.path())
                                           : "");
  }
  return texts;
}

// Directories of the root become links to the host and back while the hooks run, as a process with
// the root, or a volume in it, can do from another container.
TEST_P(cdi_hook_ldcache, directories_replaced_by_links_do_not_escape) {
  const int rounds = gpushm_testing::number_from_environment("GPUSHM_HOOK_RACE_ROUNDS", 200);
  // In a container PID 1 is the runtime, outside of the root; this process takes its place.
  const std::string host = "proc/" + std::to_string(::getpid()) + "/root";
  const std::string there = "/" + host + outside();
  put_file(outside() + "/dir/f.conf", "host");
  put_file(outside() + "/libs/libhost.so.1.0", elf_stub("libhost.so.1"));
  put_driver();
  put_file(inside("/usr/local/cuda/compat/libcuda.so.999.1.1"), "");
  put_file(inside("/opt/driver/libevil.so.1.0"),
           elf_stub("../../" + host + outside() + "/dir/link"));
  put_file(inside("/etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n/libs\n");
  fs::create_directories(inside("/proc"));
  const std::vector<std::pair<std::string, std::string>> exchanged{
      {"/etc", there + "/dir"},
      {"/etc/ld.so.conf.d", there + "/dir"},
      {"/usr/lib", outside()},
      {"/usr/local/cuda/compat", "../../../../../../../.." + outside()},
      {"/var/cache", there + "/dir"},
      {"/opt/driver", there + "/libs"},
      {"/libs", there + "/libs"}};
  for (const auto& [place, target] : exchanged) {
    fs::create_directories(inside(place));
    put_link(inside(place + ".link"), target);
  }
  const auto before = listing(outside());

  std::atomic<bool> over{false};
  std::atomic<int> exchanges{0};
  std::thread attacker([&] {
    for (std::size_t at = 0; !over; at = (at + 1) % exchanged.size()) {
      const std::string place = inside(exchanged[at].first);
      const std::string link = place + ".link";
      for (int turn = 0; turn < 3; ++turn) {
        exchanges +=
            ::renameat2(AT_FDCWD, place.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE) == 0 ? 1
                                                                                               : 0;
      }
    }
  });
  int done = 0;
  for (; done < rounds && listing(outside()) == before; done += 25) {
    const std::string hooks =
        "mount -t proc proc \"" + root() +
        "/proc\"; hook=$1; cdi=; [ \"$2\" != cdi ] || "
        "cdi='cdi hook'; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 "
        "25; do for words in 'update-ldcache --folder /opt/driver' "
        "'create-symlinks --link target::/usr/lib/libx.so' "
        "'enable-cuda-compat --host-driver-version=550.1'; do \"$hook\" $cdi $words < " +
        state() + " > /dev/null 2>&1; done; done";
    EXPECT_EQ(run({"update-ldcache"}, hooks, true).status.signal, std::nullopt);
  }
  over = true;
  attacker.join();
  EXPECT_GE(done, rounds);
  EXPECT_GT(exchanges, rounds);
  EXPECT_EQ(listing(outside()), before);
  RecordProperty("exchanges", exchanges);
}

INSTANTIATE_TEST_SUITE_P(of,
                         cdi_hook_ldcache,
                         ::testing::Values("gpushm", "gpushm-cdi-hook"),
                         name_of_hook_program);

}  // namespace
}  // namespace gpushm_tests
