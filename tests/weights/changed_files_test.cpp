// SPDX-License-Identifier: Apache-2.0
// Files that change while a model is loaded, or while a load waits for another one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <future>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/temp_dir.hpp"
#include "tests/weights/model_compare.hpp"
#include "tests/weights/sample_model.hpp"
#include "weights/copy_lane.hpp"
#include "weights/layout.hpp"
#include "weights/model_files.hpp"
#include "weights/piece_reader.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpushm;
using gpushm_testing::scaled_timeout;
using gpushm_tests::safetensors_of;
using gpushm_tests::sample_tensor;
using gpushm_tests::write_file;
using testing::HasSubstr;

constexpr std::uint64_t tensor_bytes = 9'000'000;

/// A model of one tensor; models of different seeds differ in nothing but its bytes.
std::string content_of(std::uint64_t seed) {
  return safetensors_of({sample_tensor{"a", "U8", {tensor_bytes}, tensor_bytes, seed}});
}
void write_in_place(const std::string& path, const std::string& content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::pwrite(file, content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  EXPECT_EQ(::close(file), 0);
}
void rename_over(const std::string& path, const std::string& content) {
  write_file(path + ".new", content);
  ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
}
/// As programs do that copy a file with its times.
void write_and_restore_mtime(const std::string& path, const std::string& content) {
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  write_in_place(path, content);
  const std::array times{before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
}
void truncate_within_a_block(const std::string& path, const std::string& /*content*/) {
  ASSERT_EQ(::truncate(path.c_str(), (8 << 20) + 1'000), 0);
}

struct change {
  const char* name;
  void (*make)(const std::string& path, const std::string& content);
};
constexpr std::array changes{change{"written", write_in_place},
                             change{"renamed", rename_over},
                             change{"written_with_old_mtime", write_and_restore_mtime},
                             change{"truncated", truncate_within_a_block}};

class files_that_change : public testing::TestWithParam<std::tuple<change, reading>> {
 protected:
  static broker_options options(const std::string& socket) {
    broker_options result;
    result.socket_path = socket;
    return result;
  }
  void SetUp() override { write_file(path_, content_of(1)); }
  void change_file() { std::get<0>(GetParam()).make(path_, content_of(2)); }
  [[nodiscard]] load_options wanted() const {
    load_options result;
    result.device = "host";
    result.threads = 2;
    result.reading = std::get<1>(GetParam());
    result.timeout = scaled_timeout(60s);
    return result;
  }
  /// Of the error that the load throws.
  [[nodiscard]] std::string failure_of(const load_options& how) {
    try {
      static_cast<void>(load_tensors(client_, "w", {{path_}}, how));
      return "it has loaded";
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::invalid_file) << why.what();
      return why.what();
    }
  }
  void expect_nothing_but_what_the_file_has() {
    EXPECT_FALSE(client_.try_open("w").has_value());
    if (std::get<0>(GetParam()).make == truncate_within_a_block) {
      rename_over(path_, content_of(2));
    }
    const segment loaded = load_tensors(client_, "w", {{path_}}, wanted());
    EXPECT_EQ(gpushm_tests::model_comparison(loaded, path_).all(), "whole");
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  broker broker_ = broker::start(options(socket_));
  client client_ = client::connect({.socket_path = socket_});
  const std::string path_ = folder_ / "model.safetensors";
};

/// A load waits for minutes behind another one; its file was looked at before.
TEST_P(files_that_change, while_another_process_loads_are_not_loaded) {
  client other = client::connect({.socket_path = socket_});
  std::optional<timeline> loads = timeline::create(other, "w/~load");
  std::promise<void> waits;
  bool has_waited = false;
  load_options how = wanted();
  how.report = [&](const load_progress&) {
    if (!std::exchange(has_waited, true)) {
      waits.set_value();
    }
  };
  auto failure = std::async(std::launch::async, [&] { return failure_of(how); });
  ASSERT_EQ(waits.get_future().wait_for(scaled_timeout(60s)), std::future_status::ready);
  change_file();
  loads.reset();
  EXPECT_THAT(failure.get(), testing::AllOf(HasSubstr(path_), HasSubstr("changed")));
  expect_nothing_but_what_the_file_has();
}

TEST_P(files_that_change, before_the_seal_are_not_sealed) {
  load_options how = wanted();
  bool has_changed = false;
  how.report = [&](const load_progress& far) {
    if (far.bytes == far.total_bytes && !std::exchange(has_changed, true)) {
      change_file();
    }
  };
  EXPECT_THAT(failure_of(how), testing::AllOf(HasSubstr(path_), HasSubstr("changed")));
  EXPECT_TRUE(has_changed);
  expect_nothing_but_what_the_file_has();
}

/// The reader has looked at the file before it changes: it reads that file or refuses, and ends.
TEST_P(files_that_change, are_read_through_one_descriptor) {
  using namespace gpushm::weights;
  const auto files = open_model({path_});
  change_file();
  const piece_reader reader(files, std::get<1>(GetParam()));
  std::vector<std::byte> memory(copy_lane::buffer_bytes + copy_lane::block_bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* const buffer =
      memory.data() + (copy_lane::block_bytes - address % copy_lane::block_bytes);
  const file_range end{0, files[0].size_bytes - 700'000, 700'000};
  if (std::get<0>(GetParam()).make == truncate_within_a_block) {
    const file_range last_block{0, (8U << 20U) + 10U, 2'000};
    EXPECT_THROW(static_cast<void>(reader.read(last_block, buffer)), error);
    EXPECT_THROW(static_cast<void>(reader.read(end, buffer)), error);
    return;
  }
  const std::byte* const first = reader.read(end, buffer);
  const std::string is = content_of(std::get<0>(GetParam()).make == rename_over ? 1 : 2);
  const std::string_view expected = std::string_view(is).substr(end.offset);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), reinterpret_cast<const char*>(first)));
}

INSTANTIATE_TEST_SUITE_P(in,
                         files_that_change,
                         testing::Combine(testing::ValuesIn(changes),
                                          testing::Values(reading::cached, reading::direct)),
                         [](const testing::TestParamInfo<std::tuple<change, reading>>& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) == reading::direct ? "_direct"
                                                                              : "_cached");
                         });

}  // namespace
