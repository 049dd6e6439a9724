// SPDX-License-Identifier: Apache-2.0
// `gpushm export` and `gpushm import`: two processes that share only a directory, with the file of
// a live, a dead and a second exporter, and with files that are not tickets.

#include "gpushm/exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using gpushm_testing::run_result;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::size_t size_bytes = 300'001;  // not a multiple of a page or chunk

std::string filled(char byte) {
  return crc32c_text(std::string(size_bytes, byte));
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) {
    names.insert(name);
  }
  return names;
}

/// Returns the entries of the directory.
std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename());
  }
  return names;
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777U;
}

/// Detects that a process has opened a file for reading and closed it.
class close_watch {
 public:
  explicit close_watch(const std::string& path) : fd_(::inotify_init1(IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(fd_.get(), path.c_str(), IN_CLOSE_NOWRITE), 0);
  }
  [[nodiscard]] bool wait(milliseconds timeout) const {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(gpushm_testing::scaled_timeout(timeout).count())) ==
           1;
  }

 private:
  gpushm::base::unique_fd fd_;
};

struct kind {
  const char* name;     ///< as in --kind
  const char* backend;  ///< as in the JSON output
  bool on_gpu;
};
void PrintTo(const kind& chosen, std::ostream* to) {
  *to << chosen.name;
}

/// The command, with the fake driver and one GPU if requested.
class exchange : public ::testing::Test {
 protected:
  explicit exchange(bool with_gpu = false) {
    if (with_gpu) {
      fake_.emplace();
    }
  }
  [[nodiscard]] std::string file() const { return cli_.directory() / "weights"; }

  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> arguments) const {
    auto options = cli_.command(std::move(arguments));
    options.env = {{"TMPDIR", cli_.directory().path()}};
    if (fake_) {
      for (const auto& variable : fake_->environment()) {
        options.env.push_back(variable);
      }
    }
    return options;
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    return gpushm_testing::run_program(command(std::move(arguments)), seconds(60));
  }
  [[nodiscard]] child start(std::vector<std::string> arguments) const {
    return child::start(command(std::move(arguments)));
  }

  [[nodiscard]] std::vector<std::string> export_arguments(const std::string& of_kind,
                                                          const std::string& fill) const {
    return {"export",
            "--file",
            file(),
            "--size",
            std::to_string(size_bytes),
            "--fill",
            fill,
            "--kind",
            of_kind,
            "--accept-fake-chunks"};
  }
  [[nodiscard]] child start_host_export(const std::string& fill,
                                        const std::vector<std::string>& more = {}) const {
    auto arguments = export_arguments("host", fill);
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto exporter = start(arguments);
    exporter.wait_for_line("^exported ", seconds(30));
    return exporter;
  }
  [[nodiscard]] std::vector<std::string> import_arguments(
      const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"import", "--file", file()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  [[nodiscard]] std::string checksum() const {
    const auto result = run(import_arguments({"--checksum", "--json"}));
    EXPECT_EQ(result.status, exited(0)) << result.err;
    return result.status == exited(0)
               ? json::parse(result.out).at("imported").at("crc32c").get<std::string>()
               : "none";
  }
  void stop(child& exporter) const {
    exporter.kill(SIGTERM);
    EXPECT_EQ(exporter.wait_exit(seconds(30)), exited(0)) << exporter.output().all_output();
  }
  /// Compares standard error as a whole, so that an additional warning is a failure.
  void expect_error(const run_result& result, const std::string& line) const {
    EXPECT_EQ(result.status, exited(1)) << result.out;
    EXPECT_EQ(result.err, "gpushm: " + line + "\n");
    EXPECT_EQ(result.out, "");
  }

  cli cli_;
  std::optional<gpushm::fake::fake_gpus> fake_;
};

class exchange_of : public exchange, public ::testing::WithParamInterface<kind> {
 protected:
  exchange_of() : exchange(GetParam().on_gpu) {}

  [[nodiscard]] child start_export(const std::string& fill,
                                   const std::vector<std::string>& more = {}) const {
    auto arguments = export_arguments(GetParam().name, fill);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start(arguments);
  }
  [[nodiscard]] child ready_export(const std::string& fill,
                                   const std::vector<std::string>& more = {}) const {
    auto exporter = start_export(fill, more);
    exporter.wait_for_line("^exported ", seconds(30));
    return exporter;
  }
};

// ---- successful exchanges ----

TEST_P(exchange_of, importer_may_start_first) {
  auto importer = start(import_arguments({"--timeout", "60s", "--checksum", "--json"}));
  auto exporter = ready_export("42", {"--metadata", "table"});
  EXPECT_EQ(importer.wait_exit(seconds(60)), exited(0)) << importer.output().all_output();
  const auto imported = json::parse(importer.text(stream::out)).at("imported");
  EXPECT_EQ(imported.at("crc32c"), filled(42));
  EXPECT_EQ(imported.at("size_bytes"), size_bytes);
  EXPECT_EQ(imported.at("backend"), GetParam().backend);
  EXPECT_EQ(imported.at("device").at("kind"), GetParam().on_gpu ? "gpu" : "host");
  EXPECT_EQ(imported.at("metadata_text"), "table");
  EXPECT_EQ(imported.at("file"), file());
  EXPECT_EQ(importer.text(stream::err), "");
  stop(exporter);
  EXPECT_EQ(exporter.text(stream::err), "");
}

TEST_P(exchange_of, file_contents_are_preserved) {
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same file in every run
  std::string contents(size_bytes, '\0');
  std::generate(contents.begin(), contents.end(), [&] { return static_cast<char>(random()); });
  std::ofstream(cli_.directory() / "in", std::ios::binary) << contents;
  auto exporter = start({"export",
                         "--file",
                         file(),
                         "--from",
                         cli_.directory() / "in",
                         "--kind",
                         GetParam().name,
                         "--accept-fake-chunks"});
  exporter.wait_for_line("^exported ", seconds(30));
  const auto result = run(import_arguments({"--out", cli_.directory() / "out"}));
  EXPECT_EQ(result.status, exited(0)) << result.err;
  std::ifstream out(cli_.directory() / "out", std::ios::binary);
  const std::string received{std::istreambuf_iterator<char>(out), {}};
  EXPECT_TRUE(received == contents);
}

TEST_P(exchange_of, stop_leaves_nothing) {
  for (const int number : {SIGTERM, SIGINT}) {
    auto exporter = ready_export("1");
    EXPECT_EQ(names_in(cli_.directory().path()),
              (std::set<std::string>{"weights", "weights.sock", "weights.sock.lock"}));
    if (fake_ && fake_->mounted()) {
      EXPECT_GE(fake_->used_bytes(0), size_bytes);
    }
    EXPECT_EQ(checksum(), filled(1));
    exporter.kill(number);
    EXPECT_EQ(exporter.wait_exit(seconds(30)), exited(0)) << exporter.output().all_output();
    EXPECT_EQ(exporter.text(stream::err), "");
    EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
    if (fake_ && fake_->mounted()) {
      EXPECT_EQ(fake_->used_bytes(0), 0U);
    }
  }
}

TEST_P(exchange_of, importers_leave_nothing_in_the_exporter) {
  auto exporter = ready_export("3");
  const auto before = settled_holdings_of({exporter.pid()});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(checksum(), filled(3));
  }
  EXPECT_TRUE(back_to(before, {exporter.pid()}, seconds(10)));
  // Also when killed during the import.
  auto importer = start(import_arguments({"--hold"}));
  importer.wait_for_line("^imported ", seconds(30));
  importer.kill(SIGKILL);
  EXPECT_EQ(importer.wait_exit(seconds(30)), killed_by(SIGKILL));
  EXPECT_TRUE(back_to(before, {exporter.pid()}, seconds(10)));
  stop(exporter);
}

TEST_P(exchange_of, until_released_ends_with_the_last_importer) {
  auto exporter = ready_export("4", {"--until-released", "--timeout", "60s"});
  auto first = start(import_arguments({"--hold"}));
  first.wait_for_line("^imported ", seconds(30));
  auto second = start(import_arguments({"--hold"}));
  second.wait_for_line("^imported ", seconds(30));
  stop(first);
  EXPECT_TRUE(exporter.running());
  EXPECT_EQ(checksum(), filled(4));
  EXPECT_TRUE(exporter.running());
  stop(second);
  EXPECT_EQ(exporter.wait_exit(seconds(30)), exited(0)) << exporter.output().all_output();
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

// ---- death ----

TEST_P(exchange_of, file_of_killed_exporter_is_reported_and_replaced) {
  auto first = ready_export("5");
  first.kill(SIGKILL);
  EXPECT_EQ(first.wait_exit(seconds(30)), killed_by(SIGKILL));
  ASSERT_TRUE(std::filesystem::exists(file()));
  expect_error(run(import_arguments({})),
               "import \"" + file() +
                   "\": the process that exported into this file has died (start the exporter "
                   "again, or wait for its file with a timeout)");
  expect_error(run(import_arguments({"--timeout", "100ms"})),
               "import \"" + file() +
                   "\": the process that exported into this file has died, and no other did within "
                   "the timeout (start the exporter again, or give a longer timeout)");
  ASSERT_TRUE(std::filesystem::exists(file()));

  // The second exporter starts after the importer has read the stale file.
  const close_watch was_read(file());
  auto waiting = start(import_arguments({"--timeout", "60s", "--checksum", "--json"}));
  ASSERT_TRUE(was_read.wait(seconds(30)));
  auto second = ready_export("6");
  EXPECT_EQ(waiting.wait_exit(seconds(60)), exited(0)) << waiting.output().all_output();
  EXPECT_EQ(json::parse(waiting.text(stream::out)).at("imported").at("crc32c"), filled(6));
  EXPECT_EQ(checksum(), filled(6));
  stop(second);
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

TEST_P(exchange_of, second_exporter_is_refused_while_first_lives) {
  auto first = ready_export("7");
  const auto refused = run(export_arguments(GetParam().name, "8"));
  expect_error(refused,
               "export \"" + file() +
                   "\": a live process is exporting to this file (stop that process, or export "
                   "to another file)");
  EXPECT_EQ(checksum(), filled(7));
  EXPECT_TRUE(first.running());
  stop(first);
}

TEST_P(exchange_of, importer_keeps_mapping_when_exporter_dies) {
  auto exporter = ready_export("9");
  auto importer = start(import_arguments({"--hold"}));
  importer.wait_for_line("^imported ", seconds(30));
  exporter.kill(SIGKILL);
  EXPECT_EQ(exporter.wait_exit(seconds(30)), killed_by(SIGKILL));
  EXPECT_EQ(importer.wait_for_line("^gpushm: hold ", seconds(30), stream::err),
            "gpushm: hold \"" + file() + "\": state is now broker-gone; the mapping stays valid");
  EXPECT_TRUE(importer.running());
  stop(importer);
}

INSTANTIATE_TEST_SUITE_P(memory,
                         exchange_of,
                         ::testing::Values(kind{"host", "host", false},
                                           kind{"cuda-vmm", "cuda-vmm", true},
                                           kind{"cuda-ipc", "cuda-ipc", true}),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- waiting ----

TEST_F(exchange, missing_file_is_reported) {
  const std::string line = "import \"" + file() +
                           "\": the file does not exist (start the exporter, or wait for its file "
                           "with a timeout)";
  expect_error(run(import_arguments({})), line);

  const auto start_of_wait = std::chrono::steady_clock::now();
  expect_error(run(import_arguments({"--timeout", "400ms"})),
               "import \"" + file() +
                   "\": the file did not appear within the timeout (start the exporter, or give a "
                   "longer timeout)");
  EXPECT_GE(std::chrono::steady_clock::now() - start_of_wait, milliseconds(380));

  const auto failed = run(import_arguments({"--json"}));
  EXPECT_EQ(failed.status, exited(1));
  EXPECT_EQ(json::parse(failed.out).at("error").at("code"), "no_such_segment");
  // Also a path below a file that is not a directory.
  std::ofstream(cli_.directory() / "plain").flush();
  EXPECT_EQ(run({"import", "--file", cli_.directory() / "plain/weights"}).status, exited(1));
}

TEST_F(exchange, time_limits_of_the_exporter) {
  auto held = export_arguments("host", "1");
  held.insert(held.end(), {"--timeout", "100ms"});
  EXPECT_EQ(run(held).status, exited(0));

  auto unwanted = held;
  unwanted.emplace_back("--until-released");
  const auto result = run(unwanted);
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.err,
            "gpushm: wait for release of \"weights\": no process opened it within 100 ms (give a "
            "longer --timeout)\n");
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

// ---- files ----

TEST_F(exchange, readers_see_complete_file_or_none) {
  constexpr int rounds = 1'000;
  // Each round's file has a different length and byte.
  const auto contents = [](int round) {
    return std::vector<std::byte>(static_cast<std::size_t>(1 + round * 37 % 4'096),
                                  static_cast<std::byte>(round));
  };
  std::atomic<int> current{-1};
  std::atomic<int> seen{-1};
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::jthread reader([&] {
    while (!done) {
      const int before = current;
      try {
        const auto bytes = gpushm::read_ticket_file(file());
        const int after = current;
        bool whole = false;
        for (int round = std::max(before, 0); round <= after + 1; ++round) {
          whole = whole || bytes == contents(round);
        }
        wrong += whole ? 0 : 1;
        seen = after;
      } catch (const gpushm::error& why) {
        // Between two rounds: removed, or about to be.
        wrong +=
            why.code() == gpushm::errc::no_such_segment || why.code() == gpushm::errc::peer_died
                ? 0
                : 1;
      }
    }
  });
  for (int round = 0; round < rounds && wrong == 0; ++round) {
    const gpushm::ticket_file written(file(), contents(round));
    current = round;
    ASSERT_TRUE(eventually([&] { return seen == round || wrong != 0; }, seconds(10))) << round;
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(seen, rounds - 1);
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

TEST_F(exchange, locked_file_without_ticket_is_reported) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same bytes in every run
  std::vector<std::byte> garbage(100);
  std::generate(garbage.begin(), garbage.end(), [&] { return static_cast<std::byte>(random()); });
  {
    const gpushm::ticket_file holder(file(), garbage);
    expect_error(run(import_arguments({})),
                 "import \"" + file() +
                     "\": it does not begin with a ticket's magic number (transfer the exporter's "
                     "bytes completely and unchanged)");
    const auto failed = run(import_arguments({"--json"}));
    EXPECT_EQ(json::parse(failed.out).at("error").at("code"), "invalid_ticket");
    // A timeout does not wait for such a file.
    EXPECT_EQ(run(import_arguments({"--timeout", "60s"})).status, exited(1));
  }
  {
    const gpushm::ticket_file holder(file(), {});
    EXPECT_EQ(run(import_arguments({})).status, exited(1));
  }
  // Too long by one byte.
  const gpushm::ticket_file holder(file(), std::vector<std::byte>(4'097));
  EXPECT_EQ(run(import_arguments({})).status, exited(1));
}

TEST_F(exchange, too_long_socket_path_is_reported) {
  const std::string directory = cli_.directory() / std::string(100, 'd');
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/weights";
  auto arguments = export_arguments("host", "1");
  arguments.at(2) = path;
  expect_error(run(arguments),
               "export \"" + path +
                   ".sock\": the socket's path does not fit into an address (at most 107 bytes) "
                   "(give a shorter path, for instance a relative one)");
  EXPECT_EQ(names_in(directory), std::set<std::string>());

  // The remedy works.
  arguments.at(2) = "weights";
  auto options = command(arguments);
  options.working_directory = directory;
  auto exporter = child::start(options);
  exporter.wait_for_line("^exported ", seconds(30));
  auto import = command({"import", "--file", "weights", "--checksum"});
  import.working_directory = directory;
  const auto imported = gpushm_testing::run_program(import, seconds(30));
  EXPECT_EQ(imported.status, exited(0)) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr(filled(1)));
  // Importers have the same limit: they may have the directory mounted at a longer path.
  expect_error(run({"import", "--file", path, "--timeout", "60s"}),
               "import \"" + path +
                   "\": the socket's path does not fit into an address (at most 107 bytes) (give "
                   "a shorter path, for instance a relative one)");
  stop(exporter);
}

TEST_F(exchange, unwritable_directory_is_reported) {
  const std::string directory = cli_.directory() / "readonly";
  std::filesystem::create_directory(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0555), 0);
  auto arguments = export_arguments("host", "1");
  arguments.at(2) = directory + "/weights";
  auto options = command(arguments);
  if (::geteuid() == 0) {
    options.uid = 65534;
    options.gid = 65534;
  }
  expect_error(gpushm_testing::run_program(options, seconds(30)),
               "export \"" + directory + "/weights.sock\": open " + directory +
                   "/weights.sock.lock: Permission denied (EACCES) (check the owner and mode, and "
                   "that a container's policy allows it)");
  EXPECT_EQ(names_in(directory), std::set<std::string>());
}

TEST_F(exchange, modes_ignore_umask) {
  const auto start_under_umask = [&](std::vector<std::string> more) {
    auto arguments = export_arguments("host", "1");
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto options = command(arguments);
    options.argv.insert(options.argv.begin(), {"/bin/sh", "-c", "umask 077; exec \"$0\" \"$@\""});
    auto exporter = child::start(options);
    exporter.wait_for_line("^exported ", seconds(30));
    return exporter;
  };
  auto exporter = start_under_umask({});
  EXPECT_EQ(mode_of(file()), 0644U);
  EXPECT_EQ(mode_of(file() + ".sock"), 0666U);
  if (::geteuid() == 0) {  // another user can import it
    auto other = command(import_arguments({"--checksum"}));
    other.uid = 65534;
    other.gid = 65534;
    const auto result = gpushm_testing::run_program(other, seconds(30));
    EXPECT_EQ(result.status, exited(0)) << result.err;
    EXPECT_THAT(result.out, HasSubstr(filled(1)));
  }
  stop(exporter);

  exporter = start_under_umask({"--file-mode", "0640", "--socket-mode", "0600"});
  EXPECT_EQ(mode_of(file()), 0640U);
  EXPECT_EQ(mode_of(file() + ".sock"), 0600U);
  stop(exporter);
}

// ---- the command line ----

TEST_F(exchange, wrong_usage_exits_with_2_and_creates_nothing) {
  const std::vector<std::vector<std::string>> wrong{
      {"export"},
      {"export", "--size", "1"},
      {"export", "--file", file()},
      {"export", "--file", file(), "--size", "0"},
      {"export", "--file", cli_.directory() / "", "--size", "1"},
      {"export", "--file", file(), "--size", "1", "--from", "/dev/null"},
      {"export", "--file", file(), "--from", "/etc/passwd", "--fill", "1"},
      {"export", "--file", file(), "--size", "1", "--fill", "256"},
      {"export", "--file", file(), "--size", "1", "--kind", "pool"},
      {"export", "--file", file(), "--size", "1", "--kind", "host", "--device", "0"},
      {"export", "--file", file(), "--size", "1", "--kind", "cuda-ipc", "--device", "host"},
      {"export", "--file", file(), "--size", "1", "--file-mode", "0999"},
      {"export", "--file", file(), "--size", "1", "--socket-mode", "07777"},
      {"export", "--file", file(), "--size", "1", "--timeout", "10"},
      {"import"},
      {"import", "--file", file(), "--access", "write"},
      {"import", "--file", file(), "--timeout", "soon"},
      {"import", file()}};
  for (const auto& arguments : wrong) {
    const auto result = run(arguments);
    const auto text = ::testing::PrintToString(arguments) + "\n" + result.err;
    EXPECT_EQ(result.status, exited(2)) << text;
    EXPECT_THAT(result.err, ::testing::StartsWith("gpushm: ")) << text;
    EXPECT_EQ(result.out, "") << text;
  }
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

TEST_F(exchange, json_has_exactly_documented_fields) {
  const std::set<std::string> mapped{"name",
                                     "generation",
                                     "epoch",
                                     "size_bytes",
                                     "backend",
                                     "device",
                                     "lifetime",
                                     "access",
                                     "metadata_bytes"};
  auto arguments = export_arguments("host", "1");
  arguments.insert(arguments.end(), {"--metadata", "text", "--json"});
  auto exporter = start(arguments);
  const auto exported =
      json::parse(exporter.wait_for_line("^\\{\"exported\"", seconds(30))).at("exported");
  auto of_export = mapped;
  of_export.insert({"requested_device", "file", "socket"});
  EXPECT_EQ(keys(exported), of_export);
  EXPECT_EQ(exported.at("requested_device"), "auto");
  EXPECT_EQ(exported.at("file"), file());
  EXPECT_EQ(exported.at("socket"), file() + ".sock");
  EXPECT_EQ(exported.at("metadata_bytes"), 4);
  EXPECT_EQ(exported.at("access"), "read-write");

  const auto result = run(import_arguments({"--json", "--access", "read-write"}));
  ASSERT_EQ(result.status, exited(0)) << result.err;
  const auto imported = json::parse(result.out).at("imported");
  auto of_import = mapped;
  of_import.insert({"metadata_text", "metadata_base64", "crc32c", "out", "file"});
  EXPECT_EQ(keys(imported), of_import);
  EXPECT_EQ(imported.at("access"), "read-write");
  EXPECT_EQ(imported.at("crc32c"), nullptr);
  for (const char* same : {"name", "generation", "epoch", "size_bytes", "file"}) {
    EXPECT_EQ(imported.at(same), exported.at(same)) << same;
  }
  stop(exporter);
}

TEST_F(exchange, requested_gpu_never_becomes_host) {
  for (const char* of_kind : {"cuda-vmm", "cuda-ipc"}) {
    auto options = command(export_arguments(of_kind, "1"));
    options.env.emplace_back("CUDA_VISIBLE_DEVICES", "-1");
    auto exporter = child::start(options);
    EXPECT_EQ(exporter.wait_exit(seconds(30)), exited(1)) << exporter.output().all_output();
    EXPECT_EQ(exporter.text(stream::out), "");
  }
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>());
}

TEST_F(exchange, signal_during_fill_leaves_nothing) {
  // A sparse file that takes far longer to read than the signal takes to arrive.
  const std::string large = cli_.directory() / "large";
  std::ofstream(large).flush();
  std::filesystem::resize_file(large, 1ULL << 30U);
  auto exporter = start({"export", "--file", file(), "--from", large, "--kind", "host"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(file() + ".sock"); }, seconds(30)));
  exporter.kill(SIGTERM);
  EXPECT_EQ(exporter.wait_exit(seconds(60)), exited(1)) << exporter.output().all_output();
  EXPECT_EQ(exporter.text(stream::err),
            "gpushm: export \"" + file() +
                "\": interrupted by a signal before it was complete (run it again)\n");
  EXPECT_EQ(names_in(cli_.directory().path()), std::set<std::string>{"large"});
}

}  // namespace
}  // namespace gpushm_tests
