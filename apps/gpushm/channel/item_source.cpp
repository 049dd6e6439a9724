// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/item_source.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "apps/gpushm/demo/pattern.hpp"
#include "apps/gpushm/file_error.hpp"
#include "apps/gpushm/segment/checksum.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "read file";

base::unique_fd opened(const std::string& path) {
  return base::unique_fd(
      path == "-"
          ? checked_file(
                operation, path, "dup", [] { return ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0); })
          : checked_file(operation, path, "open", [&] {
              return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
            }));
}

}  // namespace

item_source::item_source(std::string path, bool loop, std::uint64_t seed)
    : path_(std::move(path)), loop_(loop), seed_(seed) {
  if (path_.empty()) {
    return;
  }
  file_ = opened(path_);
  struct stat status {};
  checked_file(operation, path_, "fstat", [&] { return ::fstat(file_.get(), &status); });
  if (loop_ && (!S_ISREG(status.st_mode) || status.st_size == 0)) {
    throw error(errc::invalid_argument,
                operation,
                path_,
                "only a regular file with contents can be published again and again",
                "copy it to a file first, or leave out --loop");
  }
}

bool item_source::fill(std::span<std::byte> slot,
                       item_header& header,
                       const app::stop_signal& stop) {
  if (path_.empty()) {
    header.content = item_content::pattern;
    header.length = slot.size();
    header.check = seed_++;
    make_pattern(header.check, 0, slot);
    return true;
  }
  std::size_t used = read(slot, stop);
  if (used == 0 && loop_ && !stop.pending()) {
    checked_file(operation, path_, "lseek", [&] { return ::lseek(file_.get(), 0, SEEK_SET); });
    used = read(slot, stop);
  }
  if (used == 0) {
    return false;
  }
  crc32c sum;
  sum.add(slot.first(used));
  header.content = item_content::bytes;
  header.length = used;
  header.check = sum.value();
  return true;
}

std::size_t item_source::read(std::span<std::byte> slot, const app::stop_signal& stop) {
  std::size_t used = 0;
  while (used != slot.size()) {
    // A read from a pipe or terminal would not end at a signal.
    std::array<pollfd, 2> waiting{{{file_.get(), POLLIN, 0}, {app::stop_signal::fd(), POLLIN, 0}}};
    checked_file(
        operation, path_, "poll", [&] { return ::poll(waiting.data(), waiting.size(), -1); });
    if (stop.pending()) {
      return 0;
    }
    const auto rest = slot.subspan(used);
    const auto count = checked_file(
        operation, path_, "read", [&] { return ::read(file_.get(), rest.data(), rest.size()); });
    if (count == 0) {
      break;
    }
    used += static_cast<std::size_t>(count);
  }
  return used;
}

}  // namespace gpushm::cli
