// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/registry/spec_directory.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>

#include "base/files/syscall.hpp"

namespace gpushm::cdi {

namespace {

constexpr std::int64_t ns_per_s = 1'000'000'000;

std::int64_t ns_of(const timespec& time) {
  return std::int64_t{time.tv_sec} * ns_per_s + time.tv_nsec;
}

struct close_directory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

}  // namespace

bool is_document_name(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".yaml");
}

std::optional<file_stamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return file_stamp{
      status.st_dev, status.st_ino, status.st_size, ns_of(status.st_mtim), ns_of(status.st_ctim)};
}

bool is_fresh(const file_stamp& stamp) {
  constexpr std::int64_t tick_ns = 20'000'000;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return ns_of(now) - std::max(stamp.changed_ns, stamp.modified_ns) < tick_ns;
}

std::vector<std::string> list_documents(const std::string& directory,
                                        std::vector<yaml::problem>& problems) {
  std::vector<std::string> names;
  const auto unreadable = [&](int number) {
    problems.push_back({directory,
                        0,
                        0,
                        "unreadable",
                        "the directory cannot be read: " + base::errno_text(number)});
  };
  const std::unique_ptr<DIR, close_directory> open(::opendir(directory.c_str()));
  if (!open) {
    if (errno != ENOENT) {
      unreadable(errno);
    }
    return names;
  }
  while (true) {
    errno = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is local
    const dirent* entry = ::readdir(open.get());
    if (entry == nullptr) {
      // A directory removed meanwhile is empty.
      if (errno != 0 && errno != ENOENT) {
        unreadable(errno);
      }
      break;
    }
    const std::string_view name = std::begin(entry->d_name);
    if (is_document_name(name)) {
      names.emplace_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace gpushm::cdi
