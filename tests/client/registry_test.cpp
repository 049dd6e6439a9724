// SPDX-License-Identifier: Apache-2.0
// The clients that this process has for imported tickets.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "client/ticket/client_registry.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/file_export.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;

/// A broker with one published segment, and its ticket.
class exporter {
 public:
  exporter()
      : broker_(broker::start({.socket_path = directory_ / "socket"})),
        client_(client::connect({.socket_path = directory_ / "socket"})),
        made_(client_.create(
            "w", {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent})) {
    made_.fill(std::byte{7});
    made_.publish();
    bytes_ = export_segment(made_);
  }

  [[nodiscard]] segment import() const { return import_memory(bytes_); }
  /// Connections other than the exporter's own.
  [[nodiscard]] std::uint64_t importers() const { return broker_.statistics().connections - 1; }
  [[nodiscard]] std::uint64_t opens() const { return broker_.statistics().opens; }

 private:
  gpushm_testing::temp_dir directory_;
  broker broker_;
  client client_;
  segment made_;
  std::vector<std::byte> bytes_;
};

TEST(client_registry, imports_of_one_broker_share_client_and_mapping) {
  const exporter from;
  {
    const segment kept = from.import();
    for (int i = 0; i < 5; ++i) {
      const segment got = from.import();
      EXPECT_EQ(got.data(), kept.data());
      EXPECT_EQ(static_cast<const unsigned char*>(got.data())[4095], 7);
      EXPECT_EQ(from.importers(), 1U);
    }
    EXPECT_EQ(from.opens(), 1U);
  }
  EXPECT_TRUE(eventually([&] { return from.importers() == 0; }, 20s));
}

TEST(client_registry, view_keeps_client_for_next_import) {
  const exporter from;
  segment_view view = from.import().view();
  EXPECT_EQ(from.importers(), 1U);
  static_cast<void>(from.import());
  EXPECT_EQ(from.importers(), 1U);
  EXPECT_EQ(from.opens(), 1U);
  view = {};
  EXPECT_TRUE(eventually([&] { return from.importers() == 0; }, 20s));
}

/// The working directory of this process, restored at the end.
class working_directory {
 public:
  explicit working_directory(const std::filesystem::path& path) {
    std::filesystem::current_path(path);
  }
  working_directory(const working_directory&) = delete;
  working_directory& operator=(const working_directory&) = delete;
  ~working_directory() {
    std::error_code ignored;
    std::filesystem::current_path(former_, ignored);
  }

 private:
  std::filesystem::path former_ = std::filesystem::current_path();
};

TEST(client_registry, relative_socket_path_stays_valid_after_a_change_of_directory) {
  const gpushm_testing::temp_dir directory;
  const broker_options options{.socket_path = directory / "socket"};
  std::optional<broker> serving = broker::start(options);
  const working_directory restored(directory.path());
  client connected = client::connect({.socket_path = "socket"});
  EXPECT_EQ(connected.broker().socket_path, options.socket_path);
  segment made = connected.create("w", {.size_bytes = 4096, .device = "host"});
  made.publish();
  const auto ticket = export_segment(made, "socket");  // in the directory of its importer
  const segment kept = import_memory(ticket);
  std::filesystem::current_path("/");
  EXPECT_EQ(describe_ticket(export_segment(made)).socket_path, options.socket_path);
  EXPECT_EQ(import_memory(ticket, {.directory = directory.path()}).data(), kept.data());
  EXPECT_THROW(static_cast<void>(import_memory(ticket)), error);
  serving.reset();
  serving = broker::start(options);
  EXPECT_TRUE(connected.list().empty());  // connects again
}

TEST(reconnect, ends_when_the_stop_of_the_call_is_requested) {
  const gpushm_testing::temp_dir directory;
  std::optional<broker> serving = broker::start({.socket_path = directory / "socket"});
  client connected = client::connect({.socket_path = directory / "socket",
                                      .timeout = scaled_timeout(600s),
                                      .request_limit = scaled_timeout(600s)});
  serving.reset();
  std::stop_source stop;
  std::array<std::optional<errc>, 3> codes;
  std::vector<std::jthread> callers;  // one of them connects, the others wait for it
  for (auto& code : codes) {
    callers.emplace_back([&] {
      try {
        static_cast<void>(connected.open("w", {.timeout = 600s, .stop = stop.get_token()}));
      } catch (const error& why) {
        code = why.code();
      }
    });
  }
  stop.request_stop();
  callers.clear();
  for (const auto& code : codes) {
    EXPECT_EQ(code, errc::cancelled);
  }
}

TEST(file_export, readers_always_see_a_file_while_it_is_written_again) {
  const gpushm_testing::temp_dir directory;
  const std::string path = directory / "w";
  file_export out = file_export::begin(path);
  segment made = out.client().create("w", {.size_bytes = 4096, .device = "host"});
  made.publish();
  out.write(made);
  const auto ticket = read_ticket_file(path);
  const auto count_files = [&] {
    const std::filesystem::directory_iterator begin(directory.path());
    return std::distance(begin, std::filesystem::directory_iterator());
  };
  const auto files = count_files();
  std::atomic<bool> done{false};
  std::atomic<int> reads{0};
  std::jthread reader([&] {
    while (!done) {
      try {
        EXPECT_EQ(read_ticket_file(path), ticket);
      } catch (const error& why) {
        ADD_FAILURE() << why.what();
      }
      ++reads;
    }
  });
  EXPECT_TRUE(eventually([&] { return reads > 0; }, 20s));
  for (int i = 0; i != 300; ++i) {
    out.write(made);
  }
  const int before = reads;
  EXPECT_TRUE(eventually([&] { return reads > before; }, 20s));
  done = true;
  reader.join();
  EXPECT_EQ(count_files(), files) << "a former file is left";
  EXPECT_EQ(import_file(path).size_bytes(), 4096U);
}

TEST(ticket_file, a_file_without_a_ticket_is_not_a_dead_exporters) {
  const gpushm_testing::temp_dir directory;
  const std::string path = directory / "notes";
  std::ofstream(path) << "to do: write the ticket";
  try {
    static_cast<void>(import_file(path));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_ticket);
    EXPECT_EQ(why.cause(), "the file contains no ticket, and no process exports into it");
  }
}

}  // namespace
}  // namespace gpushm
