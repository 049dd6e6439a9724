// SPDX-License-Identifier: Apache-2.0
// Registered descriptors at gpushm-brokerd: what is left of them after the death of the broker, of
// its keeper, of their process; a library that fetches them from another PID namespace; thousands
// of one process. GPUSHM_REGISTERED sets how many.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpushm/descriptor.h"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::base::unique_fd;
using gpushm_testing::child;
using gpushm_testing::eventually;
namespace wire = gpushm::wire;

struct closes {
  void operator()(gpushm_descriptor* descriptor) const noexcept {
    gpushm_descriptor_close(descriptor);
  }
};
using registration = std::unique_ptr<gpushm_descriptor, closes>;

unique_fd new_file() {
  unique_fd file(::memfd_create("events", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
  return file;
}

ino_t inode_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 ? info.st_ino : 0;
}

std::string last_text() {
  const gpushm_string text = gpushm_error_message(gpushm_last_error());
  return {text.data, text.size};
}

class registered_at_brokerd : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure() && broker_) {
      std::printf("%s\n", broker_->keeper().output().all_output().c_str());
    }
  }
  void start() { broker_.emplace(run_dir_, std::vector<std::string>{"--domain", "default"}); }
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  static registration add(const gpushm::client& client,
                          int file,
                          std::uint32_t number = 0,
                          std::uint64_t tag = 0) {
    gpushm_descriptor* result = nullptr;
    EXPECT_EQ(gpushm_client_register_descriptor(client.handle(), file, number, tag, &result),
              GPUSHM_OK)
        << last_text();
    return registration(result);
  }
  /// The inode of what is registered; 0: nothing.
  static ino_t resolve(const gpushm::client& client, std::uint32_t number, std::uint64_t tag = 0) {
    int got = -1;
    last_ = gpushm_client_resolve_descriptor(client.handle(), number, tag, &got);
    return inode_of(unique_fd(got).get());
  }
  [[nodiscard]] child start_library(const std::vector<std::string>& words,
                                    bool in_namespaces = false) const {
    std::vector<std::string> argv;
    if (in_namespaces) {
      argv = {"unshare", "--pid", "--ipc", "--net", "--fork", "--kill-child"};
    }
    argv.push_back(gpushm_testing::own_program("fetching_library"));
    argv.emplace_back(GPUSHM_LIBRARY);
    argv.insert(argv.end(), words.begin(), words.end());
    return child::start({.argv = argv, .env = {{"GPUSHM_SOCKET", socket_}}});
  }
  /// PID, namespace, number.
  static std::vector<std::string> handle_of(child& exporter) {
    std::istringstream line(exporter.wait_for_line("handle .*", 30s));
    std::string word;
    std::vector<std::string> result;
    line >> word;
    while (line >> word) {
      result.push_back(word);
    }
    EXPECT_EQ(result.size(), 3U) << exporter.output().all_output();
    return result;
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_;
  static inline gpushm_errc last_ = GPUSHM_OK;
};

TEST_F(registered_at_brokerd, descriptors_are_continued_by_a_successor) {
  start();
  const auto exporter = connect();
  const auto importer = connect();
  const unique_fd file = new_file();
  registration made = add(exporter, file.get(), 7, 99);
  for (int i = 0; i != 3; ++i) {
    ASSERT_TRUE(broker_->kill());
    EXPECT_EQ(resolve(importer, 7, 99), inode_of(file.get())) << last_text();
    const registration more = add(exporter, file.get());
    EXPECT_EQ(resolve(importer, gpushm_descriptor_number(more.get())), inode_of(file.get()));
  }
  made.reset();
  EXPECT_TRUE(eventually([&] { return resolve(importer, 7) == 0; }, 20s));
  EXPECT_EQ(last_, GPUSHM_ERRC_NO_SUCH_SEGMENT) << last_text();
  EXPECT_TRUE(eventually(
      [&] {
        return gpushm_testing::total(gpushm_testing::count_descriptors(broker_->pid()),
                                     "memfd:events") == 0;
      },
      20s));
}

TEST_F(registered_at_brokerd, descriptors_are_handed_back_after_a_loss) {
  start();
  const auto exporter = connect();
  const unique_fd file = new_file();
  registration made = add(exporter, file.get(), 7, 99);
  for (int i = 0; i != 2; ++i) {
    broker_.reset();  // and its keeper
    start();
    const auto importer = connect();
    EXPECT_TRUE(eventually([&] { return resolve(importer, 7, 99) == inode_of(file.get()); }, 20s))
        << last_text();
  }
  made.reset();
  const auto importer = connect();
  EXPECT_TRUE(eventually([&] { return resolve(importer, 7) == 0; }, 20s));
}

/// They cannot decode a description of this kind.
TEST_F(registered_at_brokerd, descriptors_are_hidden_from_earlier_clients) {
  start();
  const auto exporter = connect();
  const unique_fd file = new_file();
  const registration made = add(exporter, file.get(), 7);
  gpushm_testing::raw_session earlier(socket_);
  earlier.greet(wire::hello());  // without known_kinds: those of the first release
  EXPECT_EQ(gpushm_testing::failure_of(earlier.request(wire::open{".fd/7", 0, 0, 0})),
            gpushm::errc::no_such_segment);
  EXPECT_EQ(gpushm_testing::failure_of(earlier.request(wire::stat{".fd/7", 0})),
            gpushm::errc::no_such_segment);
  const auto listed = earlier.request(wire::list{".fd/", ""});
  const auto* const page = gpushm_testing::body_of<wire::listing>(listed);
  ASSERT_NE(page, nullptr);
  EXPECT_TRUE(page->segments.empty());
  EXPECT_EQ(resolve(exporter, 7), inode_of(file.get())) << "no lease was given back";
}

TEST_F(registered_at_brokerd, descriptors_end_with_their_process) {
  start();
  const auto importer = connect();
  child exporter = start_library({"export"});
  const auto handle = handle_of(exporter);
  ASSERT_EQ(handle.size(), 3U);
  const auto number = static_cast<std::uint32_t>(std::stoul(handle[2]));
  EXPECT_NE(resolve(importer, number), 0U) << last_text();
  exporter.kill(SIGKILL);
  EXPECT_TRUE(eventually(
      [&] { return resolve(importer, number) == 0 && last_ == GPUSHM_ERRC_NO_SUCH_SEGMENT; }, 20s))
      << last_text();
  const unique_fd file = new_file();
  EXPECT_TRUE(add(importer, file.get(), number)) << "the number is free";
}

TEST_F(registered_at_brokerd, descriptors_are_fetched_by_a_library_of_another_pid_namespace) {
  start();
  static_cast<void>(connect());  // waits for the broker
  child exporter = start_library({"export"});
  auto handle = handle_of(exporter);
  ASSERT_EQ(handle.size(), 3U);
  const auto import_of = [&](const std::vector<std::string>& words, bool in_namespaces) {
    std::vector<std::string> all{"import"};
    all.insert(all.end(), words.begin(), words.end());
    child importer = start_library(all, in_namespaces);
    EXPECT_TRUE(importer.wait_exit(30s).success()) << importer.output().all_output();
    return importer.text(gpushm_testing::stream::out);
  };
  auto other = handle;
  other[1] = "4711";  // as in a namespace that does not exist
  EXPECT_EQ(import_of(other, false), "failed " + std::to_string(ESRCH) + "\n");
  if (::geteuid() != 0 || !gpushm_testing::find_in_path("unshare")) {
    GTEST_SKIP() << "other namespaces need root and unshare(1)";
  }
  EXPECT_EQ(import_of(handle, true), "fetched by gpushm: unseen\n");
  other = handle;
  other[0] = "1";
  EXPECT_EQ(import_of(other, true), "failed " + std::to_string(ESRCH) + "\n");
  other[2] = "1000001";
  EXPECT_EQ(import_of(other, true), "failed " + std::to_string(ENOENT) + "\n");
  exporter.close_stdin();
  EXPECT_EQ(exporter.wait_for_line("holds .*", 30s), "holds seen");
  EXPECT_TRUE(exporter.wait_exit(30s).success()) << exporter.output().all_output();
  EXPECT_TRUE(eventually(
      [&] { return import_of(handle, true) == "failed " + std::to_string(ENOENT) + "\n"; }, 20s));
}

TEST_F(registered_at_brokerd, descriptors_of_one_process_can_be_thousands) {
  start();
  auto exporter = connect();
  const auto importer = connect();
  const auto count = gpushm_testing::number_from_environment<std::size_t>("GPUSHM_REGISTERED", 400);
  const unique_fd file = new_file();
  const std::size_t before =
      gpushm_testing::total(gpushm_testing::count_descriptors(broker_->pid()));
  std::vector<registration> registrations;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i != count; ++i) {
    registrations.push_back(add(exporter, file.get()));
    ASSERT_TRUE(registrations.back());
  }
  const auto registered = std::chrono::steady_clock::now();
  for (const registration& each : registrations) {
    ASSERT_EQ(resolve(importer, gpushm_descriptor_number(each.get())), inode_of(file.get()));
  }
  const auto resolved = std::chrono::steady_clock::now();
  const auto each_us = [&](auto took) {
    return std::to_string(std::chrono::duration<double, std::micro>(took).count() /
                          static_cast<double>(count));
  };
  RecordProperty("register_us", each_us(registered - begin));
  RecordProperty("resolve_us", each_us(resolved - registered));
  std::printf("register %s us, resolve %s us\n",
              each_us(registered - begin).c_str(),
              each_us(resolved - registered).c_str());
  EXPECT_EQ(exporter.list(".fd/").size(), count);
  EXPECT_TRUE(exporter.list("").empty());
  ASSERT_TRUE(broker_->kill());
  EXPECT_EQ(resolve(importer, gpushm_descriptor_number(registrations.back().get())),
            inode_of(file.get()));
  registrations.clear();
  EXPECT_TRUE(eventually([&] { return exporter.list(".fd/").empty(); }, 60s));
  EXPECT_TRUE(eventually(
      [&] {
        return gpushm_testing::total(gpushm_testing::count_descriptors(broker_->pid())) <=
               before + 2;
      },
      60s))
      << gpushm_testing::to_text(gpushm_testing::count_descriptors(broker_->pid()));
}

}  // namespace
