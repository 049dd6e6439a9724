// SPDX-License-Identifier: Apache-2.0
#include "domains/protocol/process_usage.hpp"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "base/text/text.hpp"

namespace gpushm::domains {

namespace {

constexpr std::uint64_t ns_per_second = 1'000'000'000;

std::uint64_t nanoseconds_of(clockid_t clock) {
  timespec now{};
  return ::clock_gettime(clock, &now) == 0
             ? static_cast<std::uint64_t>(now.tv_sec) * ns_per_second +
                   static_cast<std::uint64_t>(now.tv_nsec)
             : 0;
}

/// Words of a file of numbers; those that are missing or not numbers are 0.
class number_list {
 public:
  explicit number_list(std::string_view text) : words_(base::split(text, " \n")) {}
  [[nodiscard]] std::uint64_t at(std::size_t index) const {
    return index < words_.size() ? base::number<std::uint64_t>(words_[index]).value_or(0) : 0;
  }

 private:
  std::vector<std::string_view> words_;
};

/// Computed once: the two clocks drift apart, and the time of a start must not change.
std::uint64_t start_time() {
  const std::string text = base::read_small_file("/proc/self/stat").value_or("");
  const std::size_t name_end = text.rfind(')');  // the name can contain blanks and parentheses
  if (name_end == std::string::npos) {
    return 0;
  }
  constexpr std::size_t start_ticks = 22 - 3;  // field 22; the list begins with field 3
  const auto ticks_per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  const std::string_view rest = std::string_view(text).substr(name_end + 1);
  const std::uint64_t started =
      number_list(rest).at(start_ticks) * (ns_per_second / ticks_per_second);
  const std::uint64_t since_boot = nanoseconds_of(CLOCK_BOOTTIME);
  const std::uint64_t now = nanoseconds_of(CLOCK_REALTIME);
  return started == 0 || started > since_boot ? 0 : now - (since_boot - started);
}

std::uint64_t count_descriptors() {
  struct stat about {};
  // Linux 6.2 and later report their number as the size: no walk over 100,000 entries.
  if (::stat("/proc/self/fd", &about) == 0 && about.st_size > 0) {
    return static_cast<std::uint64_t>(about.st_size);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  if (!folder) {
    return 0;
  }
  std::uint64_t count = 0;
  while (::readdir(folder.get()) != nullptr) {  // NOLINT(concurrency-mt-unsafe): own DIR
    ++count;
  }
  constexpr std::uint64_t others = 3;  // ".", ".." and the descriptor of the folder
  return count > others ? count - others : 0;
}

}  // namespace

process_usage usage_of_this_process() {
  static const std::uint64_t started = start_time();
  process_usage result;
  const std::string pages = base::read_small_file("/proc/self/statm").value_or("");
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const number_list sizes(pages);
  result.virtual_bytes = sizes.at(0) * page_bytes;
  result.resident_bytes = sizes.at(1) * page_bytes;
  result.cpu_ns = nanoseconds_of(CLOCK_PROCESS_CPUTIME_ID);
  result.open_descriptors = count_descriptors();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    result.max_descriptors = limit.rlim_cur;
  }
  result.start_unix_ns = started;
  return result;
}

}  // namespace gpushm::domains
