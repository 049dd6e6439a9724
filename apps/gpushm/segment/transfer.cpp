// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/transfer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "apps/gpushm/file_error.hpp"
#include "apps/gpushm/segment/progress.hpp"

namespace gpushm::cli {

namespace {

constexpr std::size_t block_bytes = 16U << 20U;

std::size_t block_at(std::uint64_t offset, std::uint64_t total) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, total - offset));
}

// Reads up to the end of `block` or of the file. Returns the number of bytes read.
std::size_t read_block(int fd, std::span<std::byte> block, const std::string& path) {
  std::size_t used = 0;
  while (used < block.size()) {
    const auto rest = block.subspan(used);
    const auto count = checked_file(
        "read file", path, "read", [&] { return ::read(fd, rest.data(), rest.size()); });
    if (count == 0) {
      break;
    }
    used += static_cast<std::size_t>(count);
  }
  return used;
}

}  // namespace

input_file open_input(const std::string& path) {
  base::unique_fd fd(checked_file("read file", path, "open", [&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  }));
  struct stat status {};
  checked_file("read file", path, "fstat", [&] { return ::fstat(fd.get(), &status); });
  if (!S_ISREG(status.st_mode)) {
    throw error(errc::invalid_argument,
                "read file",
                path,
                "not a regular file, so its size is unknown",
                "copy it to a file first");
  }
  if (status.st_size == 0) {
    throw error(errc::invalid_argument,
                "read file",
                path,
                "the file is empty, but a segment has at least one byte",
                "give a file with contents, or --size");
  }
  return {std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

void load(segment& target, int fd, const std::string& path, const std::function<void()>& check) {
  const std::uint64_t total = target.size_bytes();
  std::vector<std::byte> buffer(block_at(0, total));
  progress bar("loading", total);
  for (std::uint64_t offset = 0; offset < total;) {
    if (check) {
      check();
    }
    const std::span block(buffer.data(), block_at(offset, total));
    if (read_block(fd, block, path) != block.size()) {
      throw error(errc::system_error,
                  "read file",
                  path,
                  "the file became shorter while it was read",
                  "try again when no process writes to it");
    }
    target.write(offset, block);
    offset += block.size();
    bar.update(offset);
  }
}

void for_each_block(const segment& source,
                    const std::string& activity,
                    const std::function<void(std::span<const std::byte>)>& take) {
  const std::uint64_t total = source.size_bytes();
  std::vector<std::byte> buffer(block_at(0, total));
  progress bar(activity, total);
  for (std::uint64_t offset = 0; offset < total;) {
    const std::span block(buffer.data(), block_at(offset, total));
    source.read(offset, block);
    take(block);
    offset += block.size();
    bar.update(offset);
  }
}

}  // namespace gpushm::cli
