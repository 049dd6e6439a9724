// SPDX-License-Identifier: Apache-2.0
// The hooks, run by the real runc and crun, on images that try to make them read, create, replace
// or remove files of the host. The test compares a host directory before and after.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/support/oci/cleanup_guard.hpp"
#include "apps/support/oci/runtime.hpp"
#include "containers/elf/ld_cache.hpp"
#include "tests/support/container/image_root.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::elf::ld_cache_entry;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* folder = "/opt/driver";

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The types and contents of all files below a directory.
std::map<std::string, std::string> snapshot(const std::string& directory) {
  std::map<std::string, std::string> texts;
  for (const auto& each : fs::recursive_directory_iterator(directory)) {
    struct stat about {};
    EXPECT_EQ(::lstat(each.path().c_str(), &about), 0);
    std::string text = std::to_string(about.st_mode) + " " + std::to_string(about.st_uid) + " " +
                       std::to_string(about.st_ino) + " " + std::to_string(about.st_mtim.tv_sec) +
                       "." + std::to_string(about.st_mtim.tv_nsec) + " ";
    if (each.is_symlink()) {
      text += fs::read_symlink(each.path());
    } else if (each.is_regular_file()) {
      text += content_of(each.path());
    }
    texts.emplace(each.path(), text);
  }
  return texts;
}

class hook_container : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    const auto runtime = gpushm::app::oci::find_runtime(GetParam());
    if (!runtime) {
      GTEST_SKIP() << "no " << GetParam() << " in $PATH";
    }
    static std::atomic<int> count{0};
    id_ = "gpushm-hook-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    runtime_ = *runtime;
    guard_ =
        std::make_unique<gpushm::app::oci::cleanup_guard>("gpushm-hook", runtime_.command, id_);
    gpushm_testing::make_image_root(root());
    put_file(root() + folder + "/libnvidia-ml.so.550.1.2", elf_stub("libnvidia-ml.so.1"));
    put_file(host("file"), "host");
    put_file(host("dir/f.conf"), "host");
    put_file(host("libs/libhost.so.1.0"), elf_stub("libhost.so.1"));
    put_link(host("dir/link"), "../file");
    config_ = {
        {"ociVersion", "1.0.2"},
        {"root", {{"path", "rootfs"}}},
        {"process",
         {{"user", {{"uid", 0}, {"gid", 0}}},
          {"args", {"/bin/sh", "-c", "echo the container runs"}},
          {"env", {"PATH=/usr/bin", "LD_PRELOAD=/evil.so", "GLIBC_TUNABLES=x"}},
          {"cwd", "/"},
          {"noNewPrivileges", true}}},
        {"mounts",
         {{{"type", "proc"}, {"source", "proc"}, {"destination", "/proc"}},
          {{"type", "tmpfs"}, {"source", "tmpfs"}, {"destination", "/dev"}},
          {{"type", "sysfs"}, {"source", "sysfs"}, {"destination", "/sys"}, {"options", {"ro"}}}}},
        {"linux",
         {{"cgroupsPath", "/" + id_},
          {"namespaces",
           {{{"type", "pid"}},
            {{"type", "ipc"}},
            {{"type", "uts"}},
            {{"type", "mount"}},
            {{"type", "network"}}}}}}};
    hook({"update-ldcache", "--folder", folder});
  }

  [[nodiscard]] std::string root() const { return guard_->directory() + "/rootfs"; }
  /// On the host, not in a volume.
  [[nodiscard]] std::string host(const std::string& path) const { return host_ / path; }
  /// The same for a process that can access the runtime's root.
  [[nodiscard]] std::string through_proc(const std::string& path = {}) const {
    return "/proc/1/root" + host_.path() + (path.empty() ? "" : "/" + path);
  }
  /// In the image, replacing the existing entry.
  void link(const std::string& path, const std::string& target) const {
    fs::remove_all(root() + path);
    put_link(root() + path, target);
  }
  void library(const std::string& soname) const {
    put_file(root() + folder + "/libevil.so.1.0", elf_stub(soname));
  }

  /// Inserted before the existing ones.
  void hook(const std::vector<std::string>& words) {
    json& hooks = config_["hooks"]["createContainer"];
    json args = words;
    args.insert(args.begin(), "gpushm-cdi-hook");
    json created{{"path", gpushm_testing::own_program("gpushm-cdi-hook")},
                 {"args", std::move(args)},
                 {"env", {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}};
    hooks = hooks.is_null() ? json::array() : hooks;
    hooks.insert(hooks.begin(), std::move(created));
  }

  run_result run() const {
    std::ofstream(guard_->directory() + "/config.json") << config_.dump(2);
    gpushm_testing::spawn_options options;
    options.argv = runtime_.command;
    options.argv.insert(
        options.argv.end(),
        {"--root", guard_->directory() + "/state", "run", "--bundle", guard_->directory(), id_});
    return gpushm_testing::run_program(options, seconds(60));
  }

  /// Runs the container and checks that the host is unchanged. Whether it starts depends on the
  /// image.
  run_result run_unharmed() const {
    const auto before = snapshot(host_.path());
    auto result = run();
    EXPECT_EQ(snapshot(host_.path()), before);
    return result;
  }
  void expect_runs_unharmed() const {
    const auto result = run_unharmed();
    EXPECT_EQ(result.status, exited(0)) << result.out << result.err;
    EXPECT_EQ(result.out, "the container runs\n") << result.err;
  }
  void expect_cache_has_driver() const {
    const std::string cache = content_of(root() + "/etc/ld.so.cache");
    const auto entries = gpushm::elf::parse_ld_cache(std::as_bytes(std::span(cache)));
    ASSERT_TRUE(entries);
    EXPECT_THAT(*entries,
                Contains(ld_cache_entry{"libnvidia-ml.so.1", "/opt/driver/libnvidia-ml.so.1"}));
  }

  gpushm_testing::temp_dir host_{0755};
  std::string id_;
  gpushm::app::oci::runtime runtime_;
  std::unique_ptr<gpushm::app::oci::cleanup_guard> guard_;
  json config_;
};

TEST_P(hook_container, ordinary_image_gets_cache) {
  expect_runs_unharmed();
  expect_cache_has_driver();
  EXPECT_FALSE(fs::exists(root() + "/var/cache"));
  EXPECT_FALSE(fs::exists(root() + "/etc/ld.so.cache~"));
}

// ---- glibc's auxiliary cache ----

TEST_P(hook_container, auxiliary_cache_is_not_written_through_var_cache_link) {
  library("libevil.so.1\nALL ALL=(ALL:ALL) NOPASSWD: ALL\n#");
  for (const std::string& target : {through_proc("dir"), host("dir")}) {
    link("/var/cache", target);
    expect_runs_unharmed();
    expect_cache_has_driver();
  }
}

TEST_P(hook_container, auxiliary_cache_is_not_written_through_directory_link) {
  for (const std::string& target : {through_proc("dir"), through_proc("new"), host("dir")}) {
    link("/var/cache/ldconfig", target);
    expect_runs_unharmed();
    expect_cache_has_driver();
  }
  link("/var/cache/ldconfig/aux-cache", through_proc("file"));
  expect_runs_unharmed();
  link("/var/cache/ldconfig/aux-cache~", through_proc("file"));
  expect_runs_unharmed();
}

// ---- links that libraries request ----

TEST_P(hook_container, library_creates_no_link_on_host) {
  for (const char* name : {"dir/link", "dir/new", "file"}) {
    library("../../proc/1/root" + host_.path() + "/" + name);
    expect_runs_unharmed();
    expect_cache_has_driver();
  }
}

TEST_P(hook_container, library_creates_no_link_in_image) {
  library("libchosen-by-the-image.so.1");
  expect_runs_unharmed();
  EXPECT_FALSE(fs::is_symlink(root() + folder + "/libchosen-by-the-image.so.1"));
}

// ---- directories that the image's configuration names ----

TEST_P(hook_container, image_configuration_reads_no_host_directory) {
  put_file(root() + "/etc/ld.so.conf",
           through_proc("libs") + "\n/proc/self/root" + host("libs") +
               "\ninclude /etc/ld.so.conf.d/*.conf\n");
  expect_runs_unharmed();
  expect_cache_has_driver();
  EXPECT_THAT(content_of(root() + "/etc/ld.so.cache"), Not(HasSubstr("libhost")));
}

TEST_P(hook_container, image_configuration_includes_no_host_file) {
  put_file(host("dir/f.conf"), "/the/hosts/secret=x\n");
  put_file(root() + "/etc/ld.so.conf",
           "include " + through_proc("dir/f.conf") + "\ninclude /etc/ld.so.conf.d/*.conf\n");
  const auto result = run_unharmed();
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("secret")));
  expect_cache_has_driver();
}

// ---- links elsewhere ----

TEST_P(hook_container, image_links_do_not_escape) {
  hook({"create-symlinks", "--link", "target::/usr/lib/gpushm/libx.so"});
  hook({"enable-cuda-compat", "--host-driver-version=550.1"});
  put_file(root() + "/usr/local/cuda/compat/libcuda.so.999.1.1", "");
  const std::vector<std::string> targets{through_proc("dir"),
                                         "/proc/self/root" + host("dir"),
                                         "/proc/self/cwd/../../../../../../.." + host("dir"),
                                         "/proc/self/fd/3",
                                         "../../../../../../../.." + host("dir")};
  for (const std::string place :
       {"/etc/ld.so.conf.d", "/usr/lib/gpushm", "/usr/local/cuda/compat", "/var", "/etc"}) {
    const std::string kept = root() + ".kept";
    fs::rename(root(), kept);
    for (const std::string& target : targets) {
      fs::copy(kept, root(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      link(place, target);
      static_cast<void>(run_unharmed());
      fs::remove_all(root());
    }
    fs::rename(kept, root());
  }
}

TEST_P(hook_container, linked_files_are_replaced_not_followed) {
  for (const char* place : {"/etc/ld.so.cache",
                            "/etc/ld.so.cache~",
                            "/etc/ld.so.conf.d/00-gpushm-2-driver.conf",
                            "/etc/ld.so.conf.d/zz-gpushm-system.conf"}) {
    for (const std::string& target : {through_proc("file"), host("file")}) {
      link(place, target);
      expect_runs_unharmed();
      expect_cache_has_driver();
    }
  }
}

// ---- volumes ----

TEST_P(hook_container, hooks_write_nothing_into_a_volume) {
  config_["mounts"].push_back({{"type", "bind"},
                               {"source", host("dir")},
                               {"destination", "/data"},
                               {"options", {"rbind", "rw"}}});
  hook({"create-symlinks", "--link", "target::/usr/lib/gpushm/libx.so"});
  fs::create_directories(root() + "/data");
  link("/etc/ld.so.conf.d", "/data");
  link("/usr/lib/gpushm", "/data");
  const auto result = run_unharmed();
  EXPECT_EQ(result.status, exited(0)) << result.err;
}

TEST_P(hook_container, procfs_mounted_elsewhere_is_detached) {
  config_["mounts"].push_back({{"type", "bind"},
                               {"source", "/proc"},
                               {"destination", "/data/proc"},
                               {"options", {"rbind", "rw"}}});
  // This process has the host's root, like the runtime.
  const std::string root_of_host = "/data/proc/" + std::to_string(::getpid()) + "/root";
  put_file(root() + "/etc/ld.so.conf",
           root_of_host + host("libs") + "\ninclude /etc/ld.so.conf.d/*.conf\n");
  fs::create_directories(root() + "/data/proc");
  expect_runs_unharmed();
  expect_cache_has_driver();
  EXPECT_THAT(content_of(root() + "/etc/ld.so.cache"), Not(HasSubstr("libhost")));
}

// ---- time ----

TEST_P(hook_container, pipe_as_configuration_is_rejected_fast) {
  for (const char* place : {"/etc/ld.so.conf", "/etc/ld.so.conf.d/zzz.conf"}) {
    fs::create_directories(root() + "/etc/ld.so.conf.d");
    ASSERT_EQ(::mkfifo((root() + place).c_str(), 0666), 0);
    const auto start = std::chrono::steady_clock::now();
    const auto result = run_unharmed();
    EXPECT_LT(std::chrono::steady_clock::now() - start, gpushm_testing::wait_limit(seconds(8)));
    EXPECT_EQ(result.status, exited(0)) << result.err;
    fs::remove(root() + place);
  }
}

// ---- preload ----

TEST_P(hook_container, library_is_preloaded_beside_those_of_the_image) {
  const std::string libraries = host_ / "ipc";
  fs::create_directory(libraries);
  fs::copy_file(gpushm_testing::own_library("libpreload_standin.so"), libraries + "/l.so");
  for (const char* const name : {"/opt/listed.so", "/opt/variable.so"}) {
    fs::create_directories(root() + "/opt");
    fs::copy_file(gpushm_testing::own_library("libpreload_dlsym.so"), root() + name);
  }
  fs::copy_file(gpushm_testing::own_program("preload_probe"), root() + "/opt/probe");
  put_file(root() + "/etc/ld.so.preload", "/opt/listed.so\n");
  config_["mounts"].push_back({{"type", "bind"},
                               {"source", libraries},
                               {"destination", "/run/ipc"},
                               {"options", {"rbind", "ro", "nosuid", "nodev"}}});
  config_["process"]["args"] = {"/opt/probe", "cuIpcOpenMemHandle_v2", "cuMemAlloc_v2"};
  config_["process"]["env"] = {"PATH=/usr/bin"};
  config_["root"]["readonly"] = true;
  hook({"preload", "--library", "/run/ipc/l.so"});
  const std::string rest = "\nGPUSHM_IPC_DOMAIN=(unset)\nGPUSHM_SOCKET=(unset)\n";
  const auto result = run_unharmed();
  EXPECT_EQ(
      result.out,
      "cuIpcOpenMemHandle_v2 /run/ipc/l.so\ncuMemAlloc_v2 /opt/listed.so\nLD_PRELOAD=(unset)" +
          rest)
      << result.err;
  EXPECT_EQ(content_of(root() + "/etc/ld.so.preload"), "/opt/listed.so\n");
  config_["process"]["env"].push_back("LD_PRELOAD=/opt/variable.so");
  const auto variable = run_unharmed();
  EXPECT_EQ(variable.out,
            "cuIpcOpenMemHandle_v2 /run/ipc/l.so\ncuMemAlloc_v2 /opt/variable.so\n"
            "LD_PRELOAD=/opt/variable.so" +
                rest)
      << variable.err;
}

TEST_P(hook_container, preload_follows_no_link_to_the_host) {
  fs::create_directories(root() + "/run/ipc");
  fs::copy_file(gpushm_testing::own_library("libpreload_standin.so"), root() + "/run/ipc/l.so");
  hook({"preload", "--library", "/run/ipc/l.so"});
  for (const std::string place : {"/etc/ld.so.preload", "/run/ipc/l.so", "/run/ipc", "/etc"}) {
    const std::string kept = root() + ".kept";
    fs::rename(root(), kept);
    for (const std::string& target : {through_proc("file"),
                                      through_proc("new"),
                                      through_proc("dir"),
                                      "/proc/self/root" + host("file"),
                                      std::string("../../../../../../../..") + host("new")}) {
      fs::copy(kept, root(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      link(place, target);
      static_cast<void>(run_unharmed());
      fs::remove_all(root());
    }
    fs::rename(kept, root());
  }
}

// ---- in a user namespace, as with rootless engines ----

TEST_P(hook_container, ordinary_image_gets_cache_in_user_namespace) {
  if (const auto reason = gpushm_testing::why_no_containers(true)) {
    GTEST_SKIP() << *reason;
  }
  constexpr unsigned first = 100'000;
  ASSERT_EQ(::chmod(guard_->directory().c_str(), 0755), 0);
  const auto change_owner = [](const fs::path& path) {
    EXPECT_EQ(::lchown(path.c_str(), first, first), 0);
  };
  change_owner(root());
  for (const auto& each : fs::recursive_directory_iterator(root())) {
    change_owner(each.path());
  }
  config_["linux"]["namespaces"].push_back({{"type", "user"}});
  const json map = json::array({{{"containerID", 0}, {"hostID", first}, {"size", 65'536}}});
  config_["linux"]["uidMappings"] = map;
  config_["linux"]["gidMappings"] = map;
  expect_runs_unharmed();
  expect_cache_has_driver();
  link("/var/cache", through_proc("dir"));
  expect_runs_unharmed();
}

INSTANTIATE_TEST_SUITE_P(,
                         hook_container,
                         ::testing::Values("runc", "crun"),
                         [](const auto& setting) { return std::string(setting.param); });

}  // namespace
}  // namespace gpushm_tests
