// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi generate` and `gpushm cdi refresh` on driver layouts of distributions and GPUs of the
// fake NVML: whole documents, options, conflicts, changes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/command/cdi_generate_fixture.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using gpushm_testing::stream;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void replace_all(std::string& text, const std::string& pattern, const std::string& replacement) {
  for (auto at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, at + replacement.size())) {
    text.replace(at, pattern.size(), replacement);
  }
}

// ---- whole documents ----

struct whole_case {
  std::string tree;
  std::string gpus;
};
void PrintTo(const whole_case& value, std::ostream* to) {
  *to << value.tree << "+" << value.gpus;
}
std::string name_of_case(const ::testing::TestParamInfo<whole_case>& info) {
  std::string name = info.param.tree + "_" + info.param.gpus;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

std::vector<recorded_gpu> gpus_called(const std::string& name) {
  if (name == "one") {
    return plain_gpus(1);
  }
  if (name == "two-with-graphics") {
    auto gpus = plain_gpus(2);
    gpus[0].graphics = gpus[1].graphics = true;
    return gpus;
  }
  if (name == "eight") {
    return plain_gpus(8);
  }
  if (name == "a100-seven") {
    return {a100_seven()};
  }
  if (name == "a100-three") {
    return {a100_three()};
  }
  if (name == "h100-mixed") {
    return {h100_mixed()};
  }
  if (name == "h100-halves") {
    return {h100_halves()};
  }
  recorded_gpu empty;
  empty.mig = true;
  return {recorded_gpu(), h100_mixed(), empty};  // "some-split"
}

class cdi_whole : public cdi_generate, public ::testing::WithParamInterface<whole_case> {};

INSTANTIATE_TEST_SUITE_P(distributions,
                         cdi_whole,
                         ::testing::Values(whole_case{"debian-12-535", "one"},
                                           whole_case{"ubuntu-22.04-550", "one"},
                                           whole_case{"ubuntu-22.04-570", "one"},
                                           whole_case{"rhel-9-550", "one"},
                                           whole_case{"nixos-550", "one"},
                                           whole_case{"driver-container-535", "one"},
                                           whole_case{"local-nvidia-lib64", "one"}),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(layouts,
                         cdi_whole,
                         ::testing::Values(whole_case{"rhel-9-550", "two-with-graphics"},
                                           whole_case{"local-nvidia-lib64", "eight"},
                                           whole_case{"local-nvidia-lib64", "a100-seven"},
                                           whole_case{"local-nvidia-lib64", "a100-three"},
                                           whole_case{"local-nvidia-lib64", "h100-mixed"},
                                           whole_case{"driver-container-535", "h100-halves"},
                                           whole_case{"ubuntu-22.04-570", "some-split"}),
                         name_of_case);

/// GPUSHM_WRITE_GOLDEN=1 in the environment writes a missing golden file: review it.
TEST_P(cdi_whole, matches_golden_file) {
  const auto& [tree, gpus] = GetParam();
  make(tree, gpus_called(gpus));
  const auto result = generate();
  static_cast<void>(document_of(result));
  std::string text = result.out;
  replace_all(text, driver_.root, "/DRIVER");
  replace_all(text, gpus_->root(), "/GPUS");
  const std::string path = std::string(GPUSHM_EXPECTED_CDI_DIR) + "/" + tree + "+" + gpus + ".yaml";
  if (std::getenv("GPUSHM_WRITE_GOLDEN") != nullptr && !fs::exists(path)) {
    std::ofstream(path) << text;
  }
  EXPECT_EQ(text, content_of(path)) << path;
}

// ---- options ----

TEST_F(cdi_generate, reports_found_and_missing_items_on_stderr) {
  make("local-nvidia-lib64", plain_gpus(2));
  const auto result = generate();
  const std::string summary =
      "gpushm: found 2 GPUs; driver 550.90.07; 6 libraries in /usr/local/nvidia/lib64 and "
      "/var/lib/nvidia/gl; 2 programs\n";
  EXPECT_EQ(result.err,
            summary +
                "gpushm: not found: libraries libnvidia-egl-gbm.so, libnvidia-egl-wayland.so and 5 "
                "more; configuration files glvnd/egl_vendor.d/10_nvidia.json, "
                "egl/egl_external_platform.d/15_nvidia_gbm.json and 12 more; firmware files "
                "nvidia/550.90.07/gsp*.bin; programs nvidia-persistenced, nvidia-cuda-mps-control "
                "and 4 more; sockets nvidia-persistenced, nvidia-fabricmanager and MPS\n");
  EXPECT_EQ(generate({"--verbose"}).err,
            summary +
                "gpushm: not found: libraries libnvidia-egl-gbm.so, libnvidia-egl-wayland.so, "
                "libnvidia-egl-wayland2.so, libnvidia-egl-xcb.so, libnvidia-egl-xlib.so, "
                "libnvidia-nvvm70.so and nvidia_drv.so\n"
                "gpushm: not found: configuration files glvnd/egl_vendor.d/10_nvidia.json, "
                "egl/egl_external_platform.d/15_nvidia_gbm.json, "
                "egl/egl_external_platform.d/10_nvidia_wayland.json, "
                "egl/egl_external_platform.d/09_nvidia_wayland2.json, "
                "egl/egl_external_platform.d/20_nvidia_xcb.json, "
                "egl/egl_external_platform.d/20_nvidia_xlib.json, nvidia/nvoptix.bin, "
                "X11/xorg.conf.d/10-nvidia.conf, X11/xorg.conf.d/nvidia-drm-outputclass.conf, "
                "OpenCL/vendors/nvidia.icd, vulkan/icd.d/nvidia_icd.json, "
                "vulkan/icd.d/nvidia_layers.json, vulkan/implicit_layer.d/nvidia_layers.json and "
                "vulkan/icd.d/nvidia_icd.x86_64.json\n"
                "gpushm: not found: firmware files nvidia/550.90.07/gsp*.bin\n"
                "gpushm: not found: programs nvidia-persistenced, nvidia-cuda-mps-control, "
                "nvidia-cuda-mps-server, nvidia-imex, nvidia-imex-ctl and nvidia-xconfig\n"
                "gpushm: not found: sockets nvidia-persistenced, nvidia-fabricmanager and MPS\n");
  EXPECT_EQ(generate({"--quiet"}).err, "");
  EXPECT_EQ(generate({"-q"}).out, result.out);
}

TEST_F(cdi_generate, json_and_yaml_are_equal) {
  make("rhel-9-550", plain_gpus(1));
  const auto yaml = generate();
  const auto json = generate({"--format", "json"});
  EXPECT_THAT(json.out, ::testing::StartsWith("{"));
  EXPECT_EQ(document_of(json), document_of(yaml));
}

TEST_F(cdi_generate, accepts_names_vendor_class_and_device_ids) {
  make("local-nvidia-lib64", {recorded_gpu(), a100_three(), recorded_gpu()});
  EXPECT_THAT(names(document_of(generate({"--device-name-strategy", "type-index"}))),
              ElementsAre("gpu0", "mig1:0", "mig1:1", "mig1:2", "gpu2", "all"));
  EXPECT_THAT(names(document_of(generate({"--device-name-strategy",
                                          "uuid",
                                          "--device-name-strategy=index",
                                          "--device-id",
                                          "2",
                                          "--no-all-device"}))),
              ElementsAre("GPU-00000002-1111-4222-8333-444455556666", "2"));
  const auto chosen = document_of(generate({"--device-id=1:1,0",
                                            "--device-name-strategy=index",
                                            "--vendor",
                                            "example.com",
                                            "--class",
                                            "accelerator"}));
  EXPECT_THAT(names(chosen), ElementsAre("0", "1:1", "all"));
  EXPECT_EQ(chosen.kind, "example.com/accelerator");
  EXPECT_EQ(chosen.devices.back().changes.device_nodes.size(), 4U);

  const auto unknown = generate({"--device-id", "7"});
  EXPECT_EQ(unknown.status, exited(1));
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err,
              HasSubstr("gpushm: find device \"7\": no such device; available: 0 = GPU-"));
}

TEST_F(cdi_generate, hooks_can_be_omitted) {
  make("ubuntu-22.04-550", plain_gpus(1));
  EXPECT_EQ(document_of(generate()).changes.hooks.size(), 4U);
  for (const cdi::hook& each :
       document_of(generate({"--disable-hook=enable-cuda-compat,create-symlinks"})).changes.hooks) {
    EXPECT_THAT(each.args, Not(Contains("enable-cuda-compat")));
    EXPECT_THAT(each.args, Not(Contains("create-symlinks")));
  }
  EXPECT_THAT(document_of(generate({"--disable-hook", "all"})).changes.hooks, IsEmpty());
}

TEST_F(cdi_generate, hook_program_defaults_to_this_one) {
  make("rhel-9-550", plain_gpus(1));
  auto options = command({"generate"});
  options.argv.resize(options.argv.size() - 2);
  const auto own = document_of(gpushm_testing::run_program(options));
  EXPECT_EQ(own.changes.hooks.at(0).path, fs::canonical(options.argv[0]).string());
  options.argv.insert(options.argv.end(), {"--nvidia-ctk-path", "/usr/bin/nvidia-ctk"});
  const auto with_ctk = document_of(gpushm_testing::run_program(options));
  EXPECT_EQ(with_ctk.changes.hooks.at(0).path, "/usr/bin/nvidia-ctk");
  EXPECT_EQ(with_ctk.changes.hooks.at(0).args.at(1), "hook");
}

TEST_F(cdi_generate, older_version_drops_and_reports_newer_fields) {
  auto gpus = plain_gpus(1);
  gpus[0].graphics = true;
  make("rhel-9-550", gpus);
  EXPECT_EQ(document_of(generate()).version, "0.7.0");
  const auto older = generate({"--spec-version", "0.5.0", "--quiet"});
  const auto document = document_of(older);
  EXPECT_EQ(document.version, "0.5.0");
  for (const cdi::device& each : document.devices) {
    EXPECT_THAT(each.changes.additional_gids, IsEmpty());
    EXPECT_EQ(each.changes.device_nodes.size(), 3U);
  }
  // For the devices 0, its UUID and "all".
  const auto lines = std::count(older.err.begin(), older.err.end(), '\n');
  EXPECT_EQ(lines, 3) << older.err;
  EXPECT_THAT(older.err, HasSubstr("gpushm: warning: "));
  EXPECT_THAT(older.err, HasSubstr("additionalGids"));
  EXPECT_EQ(document_of(generate({"--spec-version", "1.0.0"})).version, "1.0.0");
  EXPECT_EQ(document_of(generate({"--spec-version", "auto"})).version, "0.7.0");
}

TEST_F(cdi_generate, wrong_usage_exits_with_2) {
  make("rhel-9-550", plain_gpus(1));
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--format", "toml"},
                                             {"--device-name-strategy", "name"},
                                             {"--vendor", "-x"},
                                             {"--class", "a/b"},
                                             {"--spec-version", "0.2.0"},
                                             {"--hook-path", "gpushm"},
                                             {"--nosuch"},
                                             {"extra"}}) {
    const auto result = generate(wrong);
    EXPECT_EQ(result.status, exited(2)) << ::testing::PrintToString(wrong) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, Not(IsEmpty()));
  }
}

// ---- the hook program ----

TEST_F(cdi_generate, replaceable_hook_program_is_rejected) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "requires root";
  }
  make("rhel-9-550", plain_gpus(1));
  const std::string place = cli_.directory() / "shared";
  put_file(place + "/hooks", "", 0755);
  ASSERT_EQ(::chmod(place.c_str(), 0777), 0);
  const auto with_hooks = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "generate");
    auto options = command(words);
    *std::next(std::find(options.argv.begin(), options.argv.end(), "--hook-path")) =
        place + "/hooks";
    return gpushm_testing::run_program(options, seconds(60));
  };
  const auto refused = with_hooks({});
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            "gpushm: set the hook program \"" + place +
                "/hooks\": engines would run it as "
                "root, and " +
                place +
                " is writable by all users (install it where only root can "
                "write, such as /usr/local/bin)\n");
  EXPECT_EQ(with_hooks({"--disable-hook", "all"}).status, exited(0));
  ASSERT_EQ(::chmod(place.c_str(), 0755), 0);
  EXPECT_FALSE(document_of(with_hooks({})).changes.hooks.empty());
}

TEST_F(cdi_generate, replaceable_program_omits_hooks) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "requires root";
  }
  make("rhel-9-550", plain_gpus(1));
  const std::string place = cli_.directory() / "build";
  fs::create_directory(place);
  fs::copy_file(gpushm_testing::own_program("gpushm"), place + "/gpushm");
  ASSERT_EQ(::chown(place.c_str(), 1234, 1234), 0);
  auto options = command({"generate"});
  options.argv.front() = place + "/gpushm";
  const auto at = std::find(options.argv.begin(), options.argv.end(), "--hook-path");
  options.argv.erase(at, at + 2);
  const auto made = gpushm_testing::run_program(options, seconds(60));
  EXPECT_TRUE(document_of(made).changes.hooks.empty());
  EXPECT_THAT(made.err,
              HasSubstr("gpushm: warning: the document has no hooks: the hook program would be " +
                        place + "/gpushm; engines would run it as root, and " + place +
                        " belongs to uid 1234 (install it"));
}

TEST_F(cdi_generate, missing_driver_reports_searched_places) {
  make("rhel-9-550", plain_gpus(1));
  fs::remove_all(driver_.root);
  const auto result = generate();
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            "gpushm: find the driver's libraries \"" + driver_.root +
                "\": no 64-bit libcuda.so.<version> or libnvidia-ml.so.<version> was found in the "
                "driver's default directories or the ld cache (set the driver's root with "
                "--driver-root, or its directory below that root with --library-search-path)\n");
}

// ---- writing ----

TEST_F(cdi_generate, file_is_written_with_its_directory) {
  make("rhel-9-550", plain_gpus(1));
  const auto result = generate({"--output", spec("nvidia.json")});
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(content_of(spec("nvidia.json")), ::testing::StartsWith("{"));
  EXPECT_EQ(cdi::load(spec("nvidia.json")).content, document_of(generate()));
  struct stat about {};
  ASSERT_EQ(::stat(spec("nvidia.json").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0644U);
  EXPECT_EQ(std::distance(fs::directory_iterator(cli_.directory() / "cdi"), {}), 1);
  // Overwriting its own file is not a conflict.
  EXPECT_EQ(generate({"-o", spec("nvidia.json")}).status, exited(0));
  EXPECT_THAT(generate({"-q", "-o", spec("nvidia.txt"), "--vendor", "a.b"}).err,
              HasSubstr("warning: container engines read only files that end in .json or .yaml"));
}

TEST_F(cdi_generate, conflict_with_another_document_is_rejected) {
  make("rhel-9-550", plain_gpus(1));
  put_file(spec("other.yaml"),
           "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n"
           "    env:\n    - A=b\n");
  const auto refused = generate({"--output", spec("nvidia.yaml")});
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(
      refused.err,
      "gpushm: write CDI document \"" + spec("nvidia.yaml") + "\": " + spec("other.yaml") +
          " also defines nvidia.com/gpu=0, and engines ignore a device that two documents in one "
          "directory define (remove that file, or choose another --vendor, --class or --output)\n");
  EXPECT_FALSE(fs::exists(spec("nvidia.yaml")));
  EXPECT_EQ(generate({"--output", spec("nvidia.yaml"), "--class", "other"}).status, exited(0));
  EXPECT_EQ(generate({"--output", spec("own.yaml"), "--device-name-strategy=uuid"}).status,
            exited(0));
  // Invalid documents define no devices.
  put_file(spec("other.yaml"), "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: 7\n");
  fs::remove(spec("own.yaml"));
  EXPECT_EQ(generate({"--output", spec("third.yaml")}).status, exited(0));
}

TEST_F(cdi_generate, failed_write_keeps_old_file) {
  make("rhel-9-550", plain_gpus(1));
  put_file(cli_.directory() / "file", "text");
  const auto result = generate({"--output", cli_.directory() / "file/nvidia.yaml"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(content_of(cli_.directory() / "file"), "text");
}

// ---- refresh ----

TEST_F(cdi_generate, refresh_writes_changes_with_reason) {
  make("local-nvidia-lib64", plain_gpus(1));
  const std::string file = spec("nvidia.yaml");
  const auto refresh = [&] {
    const auto result = run({"refresh", "--output", file});
    EXPECT_EQ(result.status, exited(0)) << result.err;
    return result.err;
  };
  EXPECT_EQ(refresh(), "gpushm: wrote " + file + ": it did not exist\n");
  const auto before = fs::last_write_time(file);
  EXPECT_EQ(refresh(), "");
  EXPECT_EQ(fs::last_write_time(file), before);

  gpus_->replace({recorded_gpu(), a100_three()});
  EXPECT_THAT(refresh(), HasSubstr(file + ": added: 1:0, "));
  gpus_->replace(plain_gpus(1));
  EXPECT_THAT(refresh(), HasSubstr(file + ": removed: 1:0, "));
  fs::rename(driver_.root + "/usr/local/nvidia/lib64/libcuda.so.550.90.07",
             driver_.root + "/usr/local/nvidia/lib64/libcuda.so.570.1.2");
  EXPECT_THAT(refresh(), HasSubstr(file + ": driver 550.90.07 became 570.1.2\n"));
  put_file(driver_.root + "/usr/bin/nvidia-imex", "", 0755);
  EXPECT_EQ(refresh(), "gpushm: wrote " + file + ": files, device nodes or hooks changed\n");
  put_file(file, "cdiVersion: [\n");
  EXPECT_THAT(refresh(), HasSubstr(file + ": it was invalid: "));
  EXPECT_EQ(refresh(), "");
}

TEST_F(cdi_generate, refresh_without_driver_fails_and_keeps_file) {
  make("rhel-9-550", plain_gpus(1));
  const std::string file = spec("nvidia.yaml");
  EXPECT_EQ(run({"refresh", "--output", file}).status, exited(0));
  const std::string text = content_of(file);
  fs::remove_all(driver_.root + "/usr/lib64");
  const auto result = run({"refresh", "--output", file});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_THAT(result.err, HasSubstr("gpushm: find the driver's libraries"));
  EXPECT_EQ(content_of(file), text);
}

TEST_F(cdi_generate, watch_follows_mig_driver_and_deletion) {
  make("local-nvidia-lib64", plain_gpus(1));
  const std::string file = spec("nvidia.yaml");
  auto watcher = gpushm_testing::child::start(
      command({"refresh", "--watch", "--interval", "50ms", "--output", file}));
  const auto line = [&](const std::string& pattern) {
    return watcher.wait_for_line(pattern, seconds(30), stream::err);
  };
  line("wrote .*: it did not exist");
  line("watching; .* is up to date");
  gpus_->replace({a100_three()});
  line("wrote .*: added: 0:0.*; removed: 0 ");
  gpus_->set_module("570.1.2");
  line(
      "warning: the libraries are from driver 550.90.07, the loaded kernel module is from 570.1.2");
  fs::remove(file);
  line("wrote .*: it did not exist");
  // An event of the directory, not of /proc.
  put_file(driver_.root + "/usr/local/nvidia/lib64/libnvidia-new.so.550.90.07",
           content_of(driver_.root + "/usr/local/nvidia/lib64/libcuda.so.550.90.07"));
  line("wrote .*: files, device nodes or hooks changed");
  watcher.kill(SIGTERM);
  EXPECT_EQ(watcher.wait_exit(seconds(20)), exited(0));
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(cdi_generate, watch_waits_for_late_driver) {
  make("rhel-9-550", plain_gpus(1));
  const std::string file = spec("nvidia.yaml");
  fs::rename(driver_.root + "/usr/lib64", driver_.root + "/later");
  auto watcher = gpushm_testing::child::start(
      command({"refresh", "--watch", "--interval", "50ms", "--output", file}));
  watcher.wait_for_line("waiting: find the driver's libraries", seconds(30), stream::err);
  EXPECT_FALSE(fs::exists(file));
  fs::rename(driver_.root + "/later", driver_.root + "/usr/lib64");
  watcher.wait_for_line("wrote .*: it did not exist", seconds(30), stream::err);
  watcher.kill(SIGINT);
  EXPECT_EQ(watcher.wait_exit(seconds(20)), exited(0));
  // Logged once for any number of attempts.
  const std::string& log = watcher.text(stream::err);
  EXPECT_EQ(log.find("waiting"), log.rfind("waiting")) << log;
}

TEST_F(cdi_generate, watch_survives_failing_nvml) {
  make("rhel-9-550", {});
  const std::string file = spec("nvidia.yaml");
  auto watcher = gpushm_testing::child::start(
      command({"refresh", "--watch", "--interval", "50ms", "--output", file}));
  watcher.wait_for_line("waiting: load NVML", seconds(30), stream::err);
  gpus_->replace(plain_gpus(1));
  watcher.wait_for_line("wrote .*: it did not exist", seconds(30), stream::err);
  watcher.kill(SIGTERM);
  EXPECT_EQ(watcher.wait_exit(seconds(20)), exited(0));
}

}  // namespace
}  // namespace gpushm_tests
