// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/file_stamp.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <array>
#include <chrono>
#include <ctime>

#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::tensors {

namespace {

constexpr const char* operation = "load";
constexpr std::int64_t second_ns = 1'000'000'000;

constexpr std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * second_ns + time.tv_nsec;
}

/// The clock of the kernel's inodes.
std::int64_t inode_clock() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return nanoseconds(now);
}

bool is_overlay(const struct statfs& status) noexcept {
  return static_cast<std::uint64_t>(status.f_type) == OVERLAYFS_SUPER_MAGIC;
}

file_stamp stamp_from(const struct stat& info, bool is_on_overlay) noexcept {
  return {is_on_overlay ? 0 : static_cast<std::uint64_t>(info.st_dev),
          static_cast<std::uint64_t>(info.st_ino),
          static_cast<std::uint64_t>(info.st_size),
          nanoseconds(info.st_mtim),
          nanoseconds(info.st_ctim)};
}

[[noreturn]] void changed(const std::string& path, const std::string& change) {
  throw error(errc::invalid_file,
              operation,
              path,
              "it has changed since this load has opened it: " + change,
              std::string(when_written));
}

}  // namespace

file_stamp stamp_of(int file, const std::string& path) {
  constexpr int longest_wait = 50;  // more than a tick at 100 Hz
  struct statfs system {};
  base::checked(operation, path, "fstatfs", [&] { return ::fstatfs(file, &system); });
  for (int waited = 0;; ++waited) {
    struct stat info {};
    base::checked(operation, path, "fstat", [&] { return ::fstat(file, &info); });
    if (!S_ISREG(info.st_mode)) {
      throw error(errc::invalid_file, operation, path, "it is not a regular file", "pass a file");
    }
    const std::int64_t age = inode_clock() - nanoseconds(info.st_ctim);
    // Much younger: the clock of another machine, to which this one's has no relation.
    if (age > 0 || age < -second_ns || waited == longest_wait) {
      return stamp_from(info, is_overlay(system));
    }
    base::pause_before_retry(std::chrono::milliseconds(1));
  }
}

std::optional<file_stamp> stamp_at(const std::string& path) noexcept {
  struct stat info {};
  struct statfs system {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      ::statfs(path.c_str(), &system) != 0) {
    return std::nullopt;
  }
  return stamp_from(info, is_overlay(system));
}

void check_unchanged(int file, const std::string& path, const file_stamp& before) {
  const file_stamp now = stamp_of(file, path);
  if (now.size_bytes != before.size_bytes) {
    changed(path,
            "it had " + std::to_string(before.size_bytes) + " bytes and has " +
                std::to_string(now.size_bytes));
  }
  if (now.mtime_ns != before.mtime_ns) {
    changed(path,
            "it was written (mtime was " + time_text(before.mtime_ns) + " and is " +
                time_text(now.mtime_ns) + ")");
  }
  if (now.ctime_ns != before.ctime_ns) {
    changed(path,
            "it was written, renamed, replaced or given other rights (ctime was " +
                time_text(before.ctime_ns) + " and is " + time_text(now.ctime_ns) + ")");
  }
  const auto at_path = stamp_at(path);
  if (at_path && (at_path->inode != before.inode || at_path->device != before.device)) {
    changed(path, "another file has its name now");
  }
}

std::string time_text(std::int64_t ns_since_1970) {
  const auto seconds = static_cast<std::time_t>(ns_since_1970 / second_ns);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts) == 0) {
    return std::to_string(ns_since_1970) + " ns since 1970";
  }
  const std::string fraction = std::to_string(second_ns + ns_since_1970 % second_ns);
  return std::string(text.data()) + '.' + fraction.substr(1) + " UTC";
}

}  // namespace gpushm::tensors
