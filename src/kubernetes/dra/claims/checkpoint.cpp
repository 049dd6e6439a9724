// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* read_operation = "read checkpoint";
constexpr const char* write_operation = "write checkpoint";
constexpr std::string_view file_name = "dra-checkpoint.json";
constexpr std::size_t max_bytes = 64UL << 20U;

void create_directory(const std::string& directory) {
  std::error_code failed;
  if (std::filesystem::create_directories(directory, failed)) {
    constexpr mode_t mode = 0750;
    base::checked("create state directory", directory, "chmod", [&] {
      return ::chmod(directory.c_str(), mode);
    });
  }
  if (failed) {
    base::throw_errno(failed.value(), "create state directory", directory, "mkdir");
  }
}

base::unique_fd acquire_lock(const std::string& directory) {
  create_directory(directory);
  base::unique_fd lock = base::try_lock_file("lock state directory", directory + "/dra.lock");
  if (!lock) {
    throw error(errc::address_in_use,
                "lock state directory",
                directory,
                "another agent prepares claims on this node",
                "this agent takes over as soon as the other one has exited");
  }
  return lock;
}

}  // namespace

checkpoint_file::checkpoint_file(const std::string& directory)
    : directory_(directory),
      path_(fmt::format("{}/{}", directory, file_name)),
      second_path_(path_ + ".bak"),
      lock_(acquire_lock(directory)) {
  remove_unfinished();
}

void checkpoint_file::remove_unfinished() {
  std::error_code failed;
  const std::string unfinished = std::string(file_name);
  for (std::filesystem::directory_iterator each(directory_, failed), end; each != end && !failed;
       each.increment(failed)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(unfinished) && name.find(".tmp.") != std::string::npos) {
      ::unlink(each->path().c_str());
    }
  }
}

checkpoint checkpoint_file::load(std::string& warning) {
  const auto read = [](const std::string& path) {
    struct stat status {};
    const int status_error = base::checked(
        read_operation, path, "stat", [&] { return ::stat(path.c_str(), &status); }, {ENOENT});
    if (status_error == 0 && !S_ISREG(status.st_mode)) {  // reading a FIFO would block
      throw error(
          errc::system_error, read_operation, path, "it is not a regular file", "remove it");
    }
    std::optional<std::string> text =
        status_error == 0 ? base::read_small_file(path, max_bytes) : std::nullopt;
    if (status_error == 0 && !text) {
      throw error(errc::system_error, read_operation, path, "it cannot be read");
    }
    return text;
  };
  const std::optional<std::string> first = read(path_);
  std::optional<error> damage;
  if (first) {
    try {
      return from_text(*first, path_);
    } catch (const error& wrong) {
      if (wrong.code() == errc::unsupported_version) {
        throw;
      }
      damage = wrong;
    }
  }
  const std::optional<std::string> second = read(second_path_);
  if (!second) {
    if (damage) {
      throw error(*damage);
    }
    return {};
  }
  checkpoint state;
  try {
    state = from_text(*second, second_path_);
  } catch (const error&) {
    if (damage) {
      throw error(*damage);
    }
    throw;
  }
  warning = fmt::format("{}; used {} instead",
                        damage ? std::string(damage->what()) : path_ + " does not exist",
                        second_path_);
  if (damage) {
    const std::string aside = path_ + ".damaged";
    base::checked(
        read_operation, path_, "rename", [&] { return ::rename(path_.c_str(), aside.c_str()); });
    warning.append(", and renamed the damaged file to ").append(aside);
  }
  return state;
}

void checkpoint_file::write(const std::string& path, const std::string& text, bool durable) {
  base::staged_file file(write_operation, path);
  file.write(text);
  if (durable) {
    base::checked(write_operation, path, "fsync", [&] { return ::fsync(file.fd()); });
  }
  file.commit();
}

void checkpoint_file::save(const checkpoint& state) {
  const std::string text = to_text(state);
  // Intact after a power loss: this version or, without an fsync of the directory, the previous
  // one. Either is sufficient, because a power loss also ends everything that is prepared.
  write(path_, text, true);
  // The copy covers an unreadable first file, not a power loss.
  try {
    write(second_path_, text, false);
  } catch (const error&) {
    // A stale copy would restore removed claims; no copy is better. The state itself is saved.
    ::unlink(second_path_.c_str());
  }
}

}  // namespace gpushm::dra
