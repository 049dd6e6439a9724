// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cdi/cdi_machine.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/container/gpu_access.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;
using gpushm_testing::spawn_options;

namespace {

constexpr const char* libraries = "/usr/lib/x86_64-linux-gnu";
constexpr const char* version = "580.82.07";
constexpr std::uint64_t role_size_bytes = 8U << 20U;

gpushm::fake::fake_gpus_options two_gpus() {
  gpushm::fake::fake_gpus_options two;
  two.gpus = 2;
  return two;
}

void install_fake_driver(const std::string& root) {
  fs::create_directories(root + libraries);
  const fs::path path = gpushm::fake::fake_driver_directory();
  for (const std::string name : {"libcuda.so", "libnvidia-ml.so"}) {
    const std::string file = name + "." + version;
    fs::copy_file(path / (name + ".1"), fs::path(root + libraries) / file);
    fs::create_symlink(file, fs::path(root + libraries) / (name + ".1"));
  }
}

}  // namespace

cdi_machine::cdi_machine(bool real) {
  if (!real) {
    fake_.emplace(two_gpus());
    install_fake_driver(tree_.path());
  }
}

std::vector<std::string> cdi_machine::places() const {
  if (!fake_) {
    return {};
  }
  return {"--driver-root",
          tree_.path(),
          "--dev-root",
          fake_->root(),
          "--proc-root",
          fake_->proc_root()};
}

gpushm_testing::run_result cdi_machine::generate(const std::vector<std::string>& more) const {
  spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushm"), "cdi", "generate"};
  if (fake_) {
    options.env = fake_->environment();
  }
  // Writable only by root, whichever user owns the build tree.
  const std::string hooks = tree_ / "gpushm";
  fs::copy_file(gpushm_testing::own_program("gpushm"), hooks, fs::copy_options::skip_existing);
  options.argv.insert(options.argv.end(), {"--hook-path", hooks});
  const auto where = places();
  options.argv.insert(options.argv.end(), where.begin(), where.end());
  options.argv.insert(options.argv.end(), more.begin(), more.end());
  return gpushm_testing::run_program(options,
                                     gpushm_testing::scaled_timeout(std::chrono::seconds(60)));
}

gpushm::broker cdi_machine::serve_and_share(const std::string& domains,
                                            const std::string& document) const {
  fs::create_directory(domains + "/default");
  gpushm::broker_options serving;
  serving.socket_path = domains + "/default/socket";
  serving.mode = 0666;
  serving.accept_fake_chunks = is_fake();
  auto broker = gpushm::broker::start(serving);
  spawn_options share;
  share.argv = {gpushm_testing::own_program("gpushm"),
                "cdi",
                "share",
                "--directory",
                domains,
                "--output",
                document};
  const auto shared = gpushm_testing::run_program(share);
  EXPECT_EQ(shared.status, gpushm_testing::exited(0)) << shared.err;
  return broker;
}

std::vector<gpushm_testing::bind_mount> cdi_machine::memory() const {
  if (!fake_) {
    return {};
  }
  return {{fake_->root(), fake_->root(), true, true}};
}

std::vector<std::pair<std::string, std::string>> cdi_machine::environment() const {
  if (!fake_) {
    return {};
  }
  return {{"GPUSHM_FAKE_GPU_ROOT", fake_->root()}, {"GPUSHM_PROC_ROOT", fake_->proc_root()}};
}

std::vector<std::string> cdi_machine::driver_libraries() const {
  const auto directory =
      fake_ ? gpushm::fake::fake_driver_directory() : gpushm_testing::libcuda_directory();
  return directory ? std::vector{*directory + "/libcuda.so.1"} : std::vector<std::string>();
}

bool cdi_machine::has_two() const {
  return fake_ ? fake_->gpus().size() > 1 : gpushm_testing::nvidia_minors().size() > 1;
}

std::vector<std::string> role_arguments(const std::string& role, int ordinal) {
  // No --socket: the command must find the only mounted domain.
  return {"demo-role",
          role,
          "--name",
          "demo/cdi",
          "--device",
          std::to_string(ordinal),
          "--size-bytes",
          std::to_string(role_size_bytes),
          "--seed",
          "7",
          "--answer-seed",
          "9",
          "--timeout",
          "100s"};
}

void expect_roles_share(gpushm_testing::child& producer, gpushm_testing::child& consumer) {
  using gpushm_testing::exited;
  const auto limit = gpushm_testing::scaled_timeout(std::chrono::seconds(60));
  const auto event = [&](gpushm_testing::child& role, const std::string& name) {
    return nlohmann::json::parse(role.wait_for_line("\"event\":\"(" + name + "|failed)\"", limit));
  };
  const auto published = event(producer, "published");
  ASSERT_EQ(published["event"], "published") << published;
  const auto opened = event(consumer, "opened");
  ASSERT_EQ(opened["event"], "opened") << opened;
  const auto read = event(consumer, "checked");
  EXPECT_EQ(read["checked_bytes"], role_size_bytes) << read;
  EXPECT_EQ(read["wrong_bytes"], 0) << read;
  const auto filled = event(consumer, "filled");
  ASSERT_EQ(filled["event"], "filled") << filled;
  producer.write("check\n");
  const auto replied = event(producer, "checked");
  EXPECT_EQ(replied["checked_bytes"], role_size_bytes) << replied;
  EXPECT_EQ(replied["wrong_bytes"], 0) << replied;
  consumer.close_stdin();
  producer.close_stdin();
  EXPECT_EQ(consumer.wait_exit(limit), exited(0)) << consumer.output().all_output();
  EXPECT_EQ(producer.wait_exit(limit), exited(0)) << producer.output().all_output();
}

}  // namespace gpushm_tests
