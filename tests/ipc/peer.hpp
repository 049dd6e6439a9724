// SPDX-License-Identifier: Apache-2.0
#pragma once

// Programs of this folder (programs/program.c and program.py) as pairs that a test drives.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests::ipc {

inline constexpr int success = 0;
inline constexpr int invalid_value = 1;
inline constexpr int invalid_context = 201;
inline constexpr int map_failed = 205;
inline constexpr int invalid_handle = 400;
inline constexpr int not_ready = 600;
inline constexpr int not_supported = 801;

inline constexpr std::chrono::seconds limit{30};
inline constexpr unsigned long memory_bytes = 65'536;

/// A file of the build, or, in an unpacked test kit, of that kit.
[[nodiscard]] inline std::string built_or_packed(const char* built, const std::string& packed) {
  namespace fs = std::filesystem;
  if (fs::exists(built)) {
    return built;
  }
  return (fs::read_symlink("/proc/self/exe").parent_path() / ".." / packed)
      .lexically_normal()
      .string();
}

/// The preloaded library: $GPUSHM_IPC_LIBRARY (another build's), else this build's.
[[nodiscard]] inline std::string library() {
  const char* const other = std::getenv("GPUSHM_IPC_LIBRARY");  // NOLINT(concurrency-mt-unsafe)
  return other != nullptr ? other
                          : built_or_packed(GPUSHM_IPC_LIBRARY, "lib/gpushm/ipc/libgpushm-ipc.so");
}

/// The arguments that start a program which reaches the driver in the given way: "linked", "dlsym",
/// "proc_address", "python", "module", "deepbind".
[[nodiscard]] inline std::vector<std::string> program_argv(const std::string& reach) {
  using gpushm_testing::own_program;
  if (reach == "python") {
    return {"/usr/bin/python3",
            built_or_packed(GPUSHM_IPC_PROGRAMS "/program.py", "share/ipc/program.py")};
  }
  if (reach == "module" || reach == "deepbind") {
    return {own_program("ipc_load_module"), gpushm_testing::own_library("ipc_module.so"), reach};
  }
  return {own_program("ipc_program_" + reach)};
}

/// What a program answered to a command.
struct reply {
  int result = -1;
  std::string value;
};

/// A running program. `Process` is `child` or `container`.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
template <typename Process>
class peer {
 public:
  explicit peer(Process process) : process_(std::move(process)) {
    const std::string line = process_.wait_for_line("^started ", limit);
    EXPECT_EQ(line, "started 0");
  }

  /// Sends a command without waiting for its answer.
  void send(const std::string& command) { process_.write(command + "\n"); }
  /// The answer to the last command of that name.
  [[nodiscard]] reply wait(const std::string& name) {
    const std::string line = process_.wait_for_line("^" + name + " ", limit);
    reply got;
    std::size_t end = 0;
    const std::string rest = line.substr(name.size() + 1);
    got.result = std::stoi(rest, &end);
    got.value = end < rest.size() ? rest.substr(end + 1) : "";
    return got;
  }
  reply ask(const std::string& command) {
    send(command);
    return wait(command.substr(0, command.find(' ')));
  }
  /// For commands of which only the result counts.
  int run(const std::string& command) { return ask(command).result; }
  /// For commands that must succeed; returns the value.
  std::string value_of(const std::string& command) {
    const reply got = ask(command);
    EXPECT_EQ(got.result, success) << command;
    return got.value;
  }

  /// Memory in slot 0 with the given value in each word; returns its handle.
  std::string exported_memory(unsigned int value) {
    EXPECT_EQ(run("alloc 0 " + std::to_string(memory_bytes)), success);
    EXPECT_EQ(run("fill 0 " + std::to_string(value)), success);
    EXPECT_EQ(run("sync"), success);
    return value_of("handle 0");
  }
  int open_memory(int slot, const std::string& handle) {
    return run("open " + std::to_string(slot) + " " + handle + " " + std::to_string(memory_bytes));
  }
  /// Number of words in the memory of `slot` that are not `value`.
  std::string wrong_words(int slot, unsigned int value) {
    return value_of("check " + std::to_string(slot) + " " + std::to_string(value));
  }

  void exit() {
    send("exit");
    EXPECT_EQ(process_.wait_exit(limit), gpushm_testing::exited(0));
  }
  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] const std::string& messages() const {
    return process_.text(gpushm_testing::stream::err);
  }

 private:
  Process process_;
};

/// A file with the word that `block` makes a stream wait for.
class gate {
 public:
  gate() {
    fd_ = gpushm::base::unique_fd(
        ::open(path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    EXPECT_TRUE(fd_);
    EXPECT_EQ(::fchmod(fd_.get(), 0666), 0);
    EXPECT_EQ(::ftruncate(fd_.get(), bytes), 0);
    page_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(page_, MAP_FAILED);
  }
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;
  ~gate() { ::munmap(page_, bytes); }

  [[nodiscard]] const std::string& directory() const { return directory_.path(); }
  [[nodiscard]] std::string path() const { return directory_ / "word"; }
  void open() const { __atomic_store_n(static_cast<unsigned long*>(page_), 1, __ATOMIC_SEQ_CST); }

 private:
  static constexpr std::size_t bytes = 4096;
  gpushm_testing::temp_dir directory_{0777};
  gpushm::base::unique_fd fd_;
  void* page_ = nullptr;
};

}  // namespace gpushm_tests::ipc
