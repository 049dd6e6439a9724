// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/inherited_descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "succession/descriptor_store/notification.hpp"

namespace gpushm::keeper {

namespace {

/// Enough for two million names.
constexpr off_t max_names_bytes = off_t{64} << 20U;

error contradiction(const std::string& cause) {
  return {errc::invalid_argument,
          "read inherited descriptors",
          {},
          cause,
          "start the program by systemd or gpushm-keeper, or without LISTEN_FDS"};
}

std::optional<long> number_in(const char* variable) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): before threads
  if (text == nullptr) {
    return std::nullopt;
  }
  const auto number = base::number<long>(text);
  if (!number || *number < 0) {
    throw contradiction(std::string(variable) + " is \"" + text + "\", not a number");
  }
  return number;
}

std::string read_names() {
  if (const auto file = number_in(names_file_variable)) {
    const base::unique_fd owned(static_cast<int>(*file));
    struct stat status {};
    base::checked(
        "read inherited descriptors", {}, "fstat", [&] { return ::fstat(owned.get(), &status); });
    if (status.st_size > max_names_bytes) {
      throw contradiction("the file of names has " + std::to_string(status.st_size) + " bytes");
    }
    std::string names(static_cast<std::size_t>(status.st_size), '\0');
    const auto size = base::checked("read inherited descriptors", {}, "pread", [&] {
      return ::pread(owned.get(), names.data(), names.size(), 0);
    });
    names.resize(static_cast<std::size_t>(size));
    return names;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before threads exist
  const char* const names = std::getenv(names_variable);
  return names == nullptr ? std::string() : names;
}

}  // namespace

std::vector<named_descriptor> take_inherited_descriptors() {
  const auto process = number_in("LISTEN_PID");
  const auto count = number_in("LISTEN_FDS");
  if (!process || !count || *process != ::getpid()) {
    return {};  // nothing, or meant for another process
  }
  std::vector<named_descriptor> result;
  for (long i = 0; i < *count; ++i) {
    const int number = first_inherited + static_cast<int>(i);
    if (::fcntl(number, F_SETFD, FD_CLOEXEC) != 0) {
      throw contradiction("LISTEN_FDS is " + std::to_string(*count) + ", but descriptor " +
                          std::to_string(number) + " is not open");
    }
    result.push_back({std::string(default_name), base::unique_fd(number)});
  }
  const std::string names = read_names();
  std::string_view rest = names;
  std::size_t named = 0;
  while (!rest.empty() && named < result.size()) {
    const std::string_view name = rest.substr(0, rest.find(':'));
    result[named++].name = name;
    rest.remove_prefix(name.size());
    if (!rest.empty()) {
      rest.remove_prefix(1);
    }
  }
  if (!names.empty() && (named != result.size() || !rest.empty())) {
    throw contradiction("there are " + std::to_string(result.size()) +
                        " inherited descriptors, but another number of names");
  }
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", names_variable, names_file_variable}) {
    ::unsetenv(variable);  // NOLINT(concurrency-mt-unsafe): before threads exist
  }
  return result;
}

}  // namespace gpushm::keeper
