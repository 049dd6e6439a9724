// SPDX-License-Identifier: Apache-2.0
// Files that change while a model is loaded, or while a load waits for another one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <future>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/files/model_files.hpp"
#include "tensors/loads/copy_lane.hpp"
#include "tensors/loads/load.hpp"
#include "tensors/loads/piece_reader.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/weights/model_compare.hpp"
#include "tests/weights/places.hpp"
#include "tests/weights/sample_model.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpushm;
using gpushm_testing::scaled_timeout;
using gpushm_tests::names_of;
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
  [[nodiscard]] std::string failure_of(const load_options& options) {
    try {
      static_cast<void>(load_tensors(client_, "w", {{path_}}, options));
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
  using namespace gpushm::tensors;
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
                         [](const testing::TestParamInfo<std::tuple<change, reading>>& chosen) {
                           return std::string(std::get<0>(chosen.param).name) +
                                  (std::get<1>(chosen.param) == reading::direct ? "_direct"
                                                                                : "_cached");
                         });

// ---- files that are loaded again ----

/// Opens of files, as the kernel reports them.
class open_watch {
 public:
  open_watch() : events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {}
  open_watch(const open_watch&) = delete;
  open_watch& operator=(const open_watch&) = delete;
  ~open_watch() { static_cast<void>(::close(events_)); }

  void add(const std::string& path) {
    EXPECT_GE(::inotify_add_watch(events_, path.c_str(), IN_OPEN), 0) << path;
  }
  /// Since the last call.
  [[nodiscard]] bool has_opened() const {
    std::array<char, 4'096> events{};
    bool result = false;
    while (::read(events_, events.data(), events.size()) > 0) {
      result = true;
    }
    return result;
  }

 private:
  int events_;
};

const std::vector<std::string> only_w{"w"};

class files_of_a_loaded_model : public testing::Test {
 protected:
  static broker_options options(const std::string& socket) {
    broker_options result;
    result.socket_path = socket;
    return result;
  }
  [[nodiscard]] static load_options wanted() {
    load_options result;
    result.device = "host";
    result.threads = 2;
    result.timeout = scaled_timeout(60s);
    return result;
  }
  [[nodiscard]] static load_options with_replace() {
    load_options result = wanted();
    result.replace = true;
    return result;
  }
  segment load(const std::string& path, const load_options& options = wanted()) {
    return load_tensors(client_, "w", {{path}}, options);
  }
  [[nodiscard]] std::string refusal_of(const std::string& path,
                                       const load_options& options = wanted()) {
    try {
      static_cast<void>(load(path, options));
      return "it has loaded";
    } catch (const error& why) {
      return std::string(to_string(why.code())) + ' ' + why.what();
    }
  }
  std::string file(const std::string& name, const std::string& content) {
    write_file(folder_ / name, content);
    return folder_ / name;
  }

  gpushm_testing::temp_dir folder_{0755};
  const std::string socket_ = folder_ / "socket";
  broker broker_ = broker::start(options(socket_));
  client client_ = client::connect({.socket_path = socket_});
};

TEST_F(files_of_a_loaded_model, are_not_opened_again) {
  const std::string path = file("model.safetensors", content_of(1));
  const generation first = load(path).generation();
  open_watch watch;
  watch.add(path);
  EXPECT_EQ(load(path).generation(), first);
  EXPECT_FALSE(watch.has_opened());
  load_options how = wanted();
  how.verify = verify::full;
  EXPECT_EQ(load(path, how).generation(), first);
  EXPECT_TRUE(watch.has_opened());
}

TEST_F(files_of_a_loaded_model, of_an_index_are_not_opened_again) {
  const std::string a = file("x1.safetensors", safetensors_of({{"a", "U8", {5}, 5}}));
  const std::string b = file("x2.safetensors", safetensors_of({{"b", "U8", {7}, 7}}));
  const std::string map = R"({"weight_map":{"a":"x1.safetensors","b":"x2.safetensors"}})";
  const std::string index = file("model.safetensors.index.json", map);
  const generation first = load(folder_ / "").generation();
  open_watch watch;
  for (const std::string& each : {a, b, index}) {
    watch.add(each);
  }
  EXPECT_EQ(load(folder_ / "").generation(), first);
  EXPECT_FALSE(watch.has_opened());
  rename_over(index, map + "\n");
  EXPECT_EQ(load(index).generation(), first);
  EXPECT_TRUE(watch.has_opened());
  write_in_place(b, safetensors_of({{"b", "U8", {7}, 7, 5}}));
  EXPECT_THAT(refusal_of(index), testing::AllOf(HasSubstr("already_exists"), HasSubstr(b)));
}

TEST_F(files_of_a_loaded_model, are_read_once_if_they_are_copies) {
  const generation first = load(file("model.safetensors", content_of(1))).generation();
  const std::string copy = file("copy.safetensors", content_of(1));
  open_watch watch;
  watch.add(copy);
  EXPECT_EQ(load(copy).generation(), first);
  EXPECT_TRUE(watch.has_opened());
  EXPECT_EQ(load(copy).generation(), first);
  EXPECT_FALSE(watch.has_opened());
  // More than the segment remembers: each is still recognised by its contents.
  for (int i = 0; i != 20; ++i) {
    rename_over(copy, content_of(1));
    EXPECT_EQ(load(copy).generation(), first);
  }
}

/// A checkpoint of the same names and sizes that was written over the former one.
TEST_F(files_of_a_loaded_model, are_refused_once_they_have_other_contents) {
  const std::string path = file("model.safetensors", content_of(1));
  static_cast<void>(load(path));
  const auto is_refusal = testing::AllOf(HasSubstr("already_exists"),
                                         HasSubstr(path),
                                         HasSubstr("changed since"),
                                         HasSubstr("mtime 2"),
                                         HasSubstr("--replace"));
  std::string changed = content_of(1);
  changed[5'000'001] = static_cast<char>(changed[5'000'001] + 1);
  write_and_restore_mtime(path, changed);
  EXPECT_THAT(refusal_of(path), is_refusal);
  rename_over(path, changed);
  EXPECT_THAT(refusal_of(path), is_refusal);
  rename_over(path, safetensors_of({{"b", "U8", {9}, 9}}));
  EXPECT_THAT(refusal_of(path), is_refusal);
}

TEST_F(files_of_a_loaded_model, replace_it) {
  const std::string path = file("model.safetensors", content_of(1));
  const segment former = load(path, with_replace());
  const std::string copy = file("copy.safetensors", content_of(1));
  EXPECT_EQ(load(copy, with_replace()).generation(), former.generation()) << "the same model";
  rename_over(path, content_of(2));
  const segment next = load(path, with_replace());
  EXPECT_NE(next.generation(), former.generation());
  EXPECT_EQ(gpushm_tests::model_comparison(next, path).all(), "whole");
  EXPECT_EQ(gpushm_tests::model_comparison(former, copy).all(), "whole");
  EXPECT_EQ(former.state(), segment_state::removed);
  client other = client::connect({.socket_path = socket_});
  EXPECT_EQ(open_tensors(other, "w").generation(), next.generation());
  EXPECT_EQ(load(path).generation(), next.generation());
}

TEST_F(files_of_a_loaded_model, do_not_replace_it_if_they_are_refused) {
  const std::string path = file("model.safetensors", content_of(1));
  const generation first = load(path).generation();
  const std::string bad = file("bad.safetensors", content_of(2));
  ASSERT_EQ(::truncate(bad.c_str(), 8'000'000), 0);
  EXPECT_THAT(refusal_of(bad, with_replace()), HasSubstr("invalid_file"));
  EXPECT_THAT(refusal_of(folder_ / "none", with_replace()), testing::Not(HasSubstr("it has")));
  EXPECT_EQ(load(path).generation(), first);
  segment memory = client_.create("m", {.size_bytes = 10, .device = "host"});
  memory.publish();
  EXPECT_THROW(static_cast<void>(load_tensors(client_, "m", {{path}}, with_replace())), error);
  EXPECT_EQ(memory.state(), segment_state::live);
}

/// Several loads at the same time, which all are to replace it.
TEST_F(files_of_a_loaded_model, replace_it_once) {
  const std::string path = file("model.safetensors", content_of(1));
  const generation first = load(path).generation();
  rename_over(path, content_of(2));
  std::vector<std::future<generation>> loads;
  for (int i = 0; i != 4; ++i) {
    loads.push_back(std::async(std::launch::async, [&] {
      client own = client::connect({.socket_path = socket_});
      return load_tensors(own, "w", {{path}}, with_replace()).generation();
    }));
  }
  std::set<generation> results;
  for (auto& each : loads) {
    results.insert(each.get());
  }
  EXPECT_EQ(results.size(), 1U);
  EXPECT_EQ(results.count(first), 0U);
}

/// Opens a model without a wait, again and again: it is there, and complete.
class reader_of_a_model {
 public:
  explicit reader_of_a_model(std::string socket)
      : socket_(std::move(socket)), thread_([this](const std::stop_token& stop) { run(stop); }) {}
  /// The generations that it has found, the last one from now on.
  [[nodiscard]] std::set<generation> end() {
    thread_.request_stop();
    thread_.join();
    return seen_;
  }

 private:
  void run(const std::stop_token& stop) {
    try {
      client own = client::connect({.socket_path = socket_});
      for (bool is_last = false; !is_last;) {
        is_last = stop.stop_requested();
        seen_.insert(open_tensors(own, "w").generation());
      }
    } catch (const error& why) {
      ADD_FAILURE() << why.what();
    }
  }

  const std::string socket_;
  std::set<generation> seen_;
  std::jthread thread_;
};

TEST_F(files_of_a_loaded_model, replace_it_under_its_readers) {
  const std::string path = file("model.safetensors", content_of(1));
  const generation former = load(path).generation();
  client other = client::connect({.socket_path = socket_});
  reader_of_a_model reader(socket_);
  load_options how = with_replace();
  int reports = 0;
  how.report = [&](const load_progress& far) {
    EXPECT_EQ(open_tensors(other, "w").generation(), former);
    EXPECT_EQ(load_tensors(other, "w", {{folder_ / "copy"}}, wanted()).generation(), former);
    reports += far.is_here ? 1 : 0;
  };
  file("copy", content_of(1));
  rename_over(path, content_of(2));
  const segment next = load(path, how);
  EXPECT_GT(reports, 0);
  EXPECT_EQ(open_tensors(other, "w").generation(), next.generation());
  const std::set<generation> seen = reader.end();
  EXPECT_TRUE(seen == (std::set{former, next.generation()}) || seen == std::set{next.generation()})
      << testing::PrintToString(seen);
  EXPECT_EQ(gpushm_tests::model_comparison(next, path).all(), "whole");
}

TEST_F(files_of_a_loaded_model, keep_it_if_the_load_fails) {
  const std::string path = file("model.safetensors", content_of(1));
  const generation former = load(path).generation();
  rename_over(path, content_of(2));
  load_options how = with_replace();
  how.report = [](const load_progress& far) {
    if (far.is_here) {  // it no longer compares
      throw std::runtime_error("of the caller");
    }
  };
  EXPECT_THROW(static_cast<void>(tensors::load(client_, "w", {path}, how)), std::runtime_error);
  client other = client::connect({.socket_path = socket_});
  EXPECT_EQ(open_tensors(other, "w").generation(), former);
  // No part of the other one is left, on this connection, either.
  EXPECT_TRUE(gpushm_testing::eventually([&] { return names_of(client_) == only_w; }, 20s))
      << testing::PrintToString(names_of(client_));
  const segment next = load(path, with_replace());
  EXPECT_NE(next.generation(), former);
  EXPECT_EQ(gpushm_tests::model_comparison(next, path).all(), "whole");
  EXPECT_TRUE(gpushm_testing::eventually([&] { return names_of(client_) == only_w; }, 20s))
      << testing::PrintToString(names_of(client_));
}

TEST_F(files_of_a_loaded_model, replace_each_other_once) {
  static_cast<void>(load(file("model.safetensors", content_of(1))));
  const std::vector<std::string> paths{file("a", content_of(2)), file("b", content_of(3))};
  std::vector<std::future<generation>> loads;
  for (const std::string& path : paths) {
    loads.push_back(std::async(std::launch::async, [&] {
      client own = client::connect({.socket_path = socket_});
      try {
        return load_tensors(own, "w", {{path}}, with_replace()).generation();
      } catch (const error& why) {  // the other one has replaced this one
        EXPECT_EQ(why.code(), errc::already_exists) << why.what();
        return generation{0};
      }
    }));
  }
  for (auto& each : loads) {
    static_cast<void>(each.get());
  }
  const segment left = open_tensors(client_, "w");
  EXPECT_TRUE(gpushm_tests::model_comparison(left, paths[0]).all() == "whole" ||
              gpushm_tests::model_comparison(left, paths[1]).all() == "whole");
}

TEST_F(files_of_a_loaded_model, need_memory_for_both_to_replace_it) {
  broker_options small = options(folder_ / "small");
  small.limits.quota_bytes = 2 * tensor_bytes - 1;
  const broker with_quota = broker::start(small);
  client client = client::connect({.socket_path = small.socket_path});
  const std::string path = file("model.safetensors", content_of(1));
  const generation former = load_tensors(client, "w", {{path}}, wanted()).generation();
  rename_over(path, content_of(2));
  try {
    static_cast<void>(load_tensors(client, "w", {{path}}, with_replace()));
    ADD_FAILURE() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::quota_exceeded);
    EXPECT_THAT(why.what(), HasSubstr("remove that one first (gpushm rm), or "));
  }
  EXPECT_EQ(open_tensors(client, "w").generation(), former);
}

/// A loader fails, and another one has a file of the same layout: no piece of the first is used.
TEST_F(files_of_a_loaded_model, are_not_mixed_with_those_of_a_loader_before) {
  const std::string path = file("model.safetensors", content_of(1));
  client other = client::connect({.socket_path = socket_});
  std::optional<segment> held;  // so that the failed load leaves it
  load_options how = wanted();
  how.report = [&](const load_progress& far) {
    if (far.bytes == far.total_bytes) {
      held = other.open("w");
      throw std::runtime_error("of the caller");
    }
  };
  EXPECT_THROW(static_cast<void>(tensors::load(client_, "w", {path}, how)), std::runtime_error);
  ASSERT_TRUE(held.has_value());
  rename_over(path, content_of(2));
  const segment loaded = load(path);
  EXPECT_EQ(loaded.generation(), held->generation());
  EXPECT_EQ(gpushm_tests::model_comparison(loaded, path).all(), "whole");
}

}  // namespace
