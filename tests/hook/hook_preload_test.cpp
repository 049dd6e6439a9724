// SPDX-License-Identifier: Apache-2.0
// `preload`: the file /etc/ld.so.preload of ordinary and hostile roots.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/sanitizers.hpp"
#include "containers/elf/loading.hpp"
#include "containers/hook/hook.hpp"
#include "tests/hook/fixture.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::hook::with_preloaded;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* library = "/run/gpushm/ipc/libgpushm-ipc.so";
constexpr const char* file = "/etc/ld.so.preload";
#if defined(__x86_64__)
constexpr const char* loader = "/lib64/ld-linux-x86-64.so.2";
constexpr const char* machine = "x86_64-linux-gnu";
#else
constexpr const char* loader = "/lib/ld-linux-aarch64.so.1";
constexpr const char* machine = "aarch64-linux-gnu";
#endif

// ---- the text ----

TEST(hook_preload_text, library_is_put_before_all_others) {
  EXPECT_EQ(with_preloaded("", "/a.so"), "/a.so\n");
  EXPECT_EQ(with_preloaded("/hami/libvgpu.so", "/a.so"), "/a.so\n/hami/libvgpu.so\n");
  EXPECT_EQ(with_preloaded("# two\n/b.so:/c.so /d.so # last\n", "/a.so"),
            "/a.so\n# two\n/b.so:/c.so /d.so # last\n");
}

TEST(hook_preload_text, library_is_listed_once) {
  EXPECT_EQ(with_preloaded("/a.so", "/a.so"), std::nullopt);
  EXPECT_EQ(with_preloaded("# first\n\n /a.so:/b.so\n", "/a.so"), std::nullopt);
  EXPECT_EQ(with_preloaded("/b.so\n /a.so \n/c.so\n", "/a.so"), "/a.so\n/b.so\n/c.so\n");
  const auto merged = with_preloaded("/b.so\n", "/a.so");
  ASSERT_TRUE(merged);
  EXPECT_EQ(with_preloaded(*merged, "/a.so"), std::nullopt);
}

TEST(hook_preload_text, commented_library_is_not_listed) {
  EXPECT_EQ(with_preloaded("#/a.so\n", "/a.so"), "/a.so\n#/a.so\n");
  EXPECT_EQ(with_preloaded("# x /a.so", "/a.so"), "/a.so\n# x /a.so\n");
}

// ---- the hook ----

class cdi_hook_preload : public cdi_hook {
 protected:
  void SetUp() override {
    if (!can_mount()) {
      GTEST_SKIP() << "this process may not mount";
    }
    cdi_hook::SetUp();
    fs::create_directories(inside("/etc"));
    copy(loader, loader);
    const std::string libc = std::string("/lib/") + machine + "/libc.so.6";
    copy(fs::exists(libc) ? libc : "/lib64/libc.so.6", libc);
    copy(gpushm_testing::own_library("libpreload_standin.so"), library);
  }

  void copy(const std::string& from, const std::string& text) const {
    fs::create_directories(fs::path(inside(text)).parent_path());
    fs::copy_file(fs::canonical(from), inside(text), fs::copy_options::overwrite_existing);
  }
  /// Runs the hook in its own mount namespace, then `script`.
  [[nodiscard]] run_result preload(const std::string& script = ":",
                                   const std::string& before = ":") const {
    return run({"preload", "--library", library},
               before + "; \"$@\" || exit; cd " + root() + "; root=" + root() + "; " + script,
               true);
  }
  /// The file as the container sees it.
  [[nodiscard]] run_result merged(const std::string& before = ":") const {
    return preload("cat " + inside(file), before);
  }
  void expect_unchanged(const std::string& object, const std::string& cause) const {
    const auto result = preload("grep -c " + root() + " /proc/self/mountinfo");
    EXPECT_EQ(result.out, "0\n");
    EXPECT_EQ(result.err,
              "gpushm: warning: " + std::string(library) +
                  " is not preloaded: preload a library \"" + object + "\": " + cause + "\n");
  }
};

TEST_P(cdi_hook_preload, image_without_the_file_gets_one) {
  const auto result = merged();
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.out, std::string(library) + "\n") << result.err;
  EXPECT_EQ(result.err, "");
  // The entry on which the file is mounted.
  EXPECT_EQ(content_of(inside(file)), "");
}

TEST_P(cdi_hook_preload, entries_of_the_image_stay_behind_it) {
  put_file(inside(file), "/usr/local/vgpu/libvgpu.so\n");
  const auto result = preload(
      "cat etc/ld.so.preload; (echo x > etc/ld.so.preload); "
      "stat -c %a etc/ld.so.preload; ls run/gpushm/ipc; ls -A etc; "
      "grep $root /proc/self/mountinfo | cut -d' ' -f5,6");
  EXPECT_EQ(result.out,
            std::string(library) + "\n/usr/local/vgpu/libvgpu.so\n444\nlibgpushm-ipc.so\n" +
                "ld.so.preload\n" + inside(file) + " ro,nosuid,nodev,noexec,relatime\n")
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("Read-only file system"));
  // Nothing remains in the image.
  EXPECT_EQ(content_of(inside(file)), "/usr/local/vgpu/libvgpu.so\n");
}

TEST_P(cdi_hook_preload, second_hook_changes_nothing) {
  put_file(inside(file), "/b.so\n");
  const auto result = preload("exec < " + state() + "; \"$@\"; cat " + inside(file) + "; grep -c " +
                              root() + " /proc/self/mountinfo");
  EXPECT_EQ(result.out, std::string(library) + "\n/b.so\n1\n") << result.err;
}

// As of HAMi's device plugin, which mounts a file of the host there, for all containers.
TEST_P(cdi_hook_preload, mounted_file_of_the_host_is_covered_and_not_changed) {
  put_file(inside(file), "");
  put_file(cli_.directory() / "vgpu/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n");
  const std::string host = cli_.directory() / "vgpu/ld.so.preload";
  const auto result = merged("mount --bind -o ro " + host + " " + inside(file));
  EXPECT_EQ(result.out, std::string(library) + "\n/usr/local/vgpu/libvgpu.so\n") << result.err;
  EXPECT_EQ(content_of(host), "/usr/local/vgpu/libvgpu.so\n");
}

TEST_P(cdi_hook_preload, read_only_root_needs_an_existing_file) {
  const std::string read_only =
      "mount --bind " + root() + " " + root() + " && mount -o remount,bind,ro " + root();
  const auto without = preload("cat etc/ld.so.preload", read_only);
  EXPECT_THAT(without.err, HasSubstr("is not preloaded: "));
  EXPECT_THAT(without.err, HasSubstr("Read-only file system (EROFS)"));
  EXPECT_EQ(without.out, "");
  put_file(inside(file), "/b.so\n");
  EXPECT_EQ(merged(read_only).out, std::string(library) + "\n/b.so\n");
}

TEST_P(cdi_hook_preload, image_without_etc_gets_it) {
  fs::remove(inside("/etc"));
  EXPECT_EQ(merged().out, std::string(library) + "\n");
}

TEST_P(cdi_hook_preload, link_is_followed_inside) {
  put_file(inside("/opt/list"), "/b.so\n");
  put_link(inside(file), "/opt/list");
  const auto result = preload("cat opt/list; readlink etc/ld.so.preload");
  EXPECT_EQ(result.out, std::string(library) + "\n/b.so\n/opt/list\n") << result.err;
  fs::remove(inside("/opt/list"));
  // Without its target, it is replaced by a file.
  EXPECT_EQ(merged().out, std::string(library) + "\n");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(inside(file))));
}

// ---- hostile roots ----

TEST_P(cdi_hook_preload, hostile_image_gets_nothing_outside) {
  for (const std::string& target : {outside() + "/secret",
                                    std::string("../../../outside/secret"),
                                    "/proc/self/root" + outside() + "/secret",
                                    "/proc/1/root" + outside() + "/new",
                                    outside() + "/new"}) {
    fs::remove_all(inside("/etc"));
    put_link(inside(file), target);
    const auto result =
        preload("grep -c " + outside() + " /proc/self/mountinfo; cat " + outside() + "/secret");
    EXPECT_EQ(result.out, "0\nsecret") << target << result.err;
    expect_outside_untouched();
    fs::remove_all(inside("/etc"));
    put_link(inside("/etc"), fs::path(target).parent_path());
    static_cast<void>(preload());
    expect_outside_untouched();
  }
}

TEST_P(cdi_hook_preload, special_file_is_refused_at_once) {
  ASSERT_EQ(::mkfifo(inside(file).c_str(), 0666), 0);
  expect_unchanged(file, "it cannot be read as a regular file");
  fs::remove(inside(file));
  fs::create_directories(inside(file));
  expect_unchanged(file, "it cannot be read as a regular file");
}

TEST_P(cdi_hook_preload, huge_file_is_refused) {
  put_file(inside(file), "");
  fs::resize_file(inside(file), std::uintmax_t{1} << 40U);
  expect_unchanged(file, "it is larger than 64 KiB");
}

TEST_P(cdi_hook_preload, file_system_without_etc_on_volume_is_not_written) {
  const auto result = preload("ls -A etc", "mount -t tmpfs tmpfs " + inside("/etc"));
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("(EXDEV)"));
}

TEST_P(cdi_hook_preload, special_loader_is_refused_at_once) {
  fs::remove(inside(loader));
  ASSERT_EQ(::mkfifo(inside(loader).c_str(), 0666), 0);
  expect_unchanged(loader,
                   "the image has no glibc of this architecture (musl, static programs and other "
                   "architectures are not supported)");
}

// ---- images that cannot load the library ----

TEST_P(cdi_hook_preload, image_without_glibc_is_unchanged) {
  fs::remove_all(inside("/lib"));
  fs::remove_all(inside("/lib64"));
  put_file(inside("/lib/ld-musl-x86_64.so.1"), elf_stub("libc.musl-x86_64.so.1"));
  expect_unchanged(loader,
                   "the image has no glibc of this architecture (musl, static programs and other "
                   "architectures are not supported)");
  for (const std::string& other :
       {elf_stub("ld-linux-x86-64.so.2", 32), elf_stub("libgcompat.so.0"), elf_stub("")}) {
    put_file(inside(loader), other);
    expect_unchanged(loader, "it is not the loader of a glibc of this architecture");
  }
  EXPECT_FALSE(fs::exists(inside(file)));
}

TEST_P(cdi_hook_preload, image_with_older_glibc_is_unchanged) {
  put_file(inside(std::string("/lib/") + machine + "/libc.so.6"), elf_stub("libc.so.6"));
  const auto result = preload();
  EXPECT_THAT(result.err, HasSubstr("it needs GLIBC_2."));
  EXPECT_THAT(result.err, EndsWith(" of libc.so.6, which the image's glibc does not have\n"));
  EXPECT_FALSE(fs::exists(inside(file)));
}

TEST_P(cdi_hook_preload, library_that_is_not_mounted_is_not_listed) {
  fs::remove(inside(library));
  expect_unchanged(library, "it is not mounted there, or not a library of this architecture");
  put_link(inside(library), outside() + "/secret");
  expect_unchanged(library, "it is not mounted there, or not a library of this architecture");
}

TEST_P(cdi_hook_preload, malformed_path_is_rejected) {
  for (const char* path : {"", "lib.so", "/a b.so", "/a:b.so", "/a#.so"}) {
    const auto result = run({"preload", "--library", path});
    EXPECT_EQ(result.status, exited(1)) << path;
    EXPECT_THAT(result.err, StartsWith("gpushm: preload a library"));
    EXPECT_THAT(result.err,
                HasSubstr("--library is not an absolute path without blanks, colons and \"#\" "
                          "(generate the CDI document again)"));
  }
}

INSTANTIATE_TEST_SUITE_P(of,
                         cdi_hook_preload,
                         ::testing::Values("gpushm", "gpushm-cdi-hook"),
                         name_of_hook_program);

}  // namespace
}  // namespace gpushm_tests
