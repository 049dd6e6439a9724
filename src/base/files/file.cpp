// SPDX-License-Identifier: Apache-2.0
#include "base/files/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"

namespace gpushm::base {

void mapping_traits::close(mapping_value value) noexcept {
  if (::munmap(value.address, value.size_bytes) != 0) {
    log(log_level::warning, "munmap failed: " + errno_text(errno));
  }
}

unique_mapping map_file(std::string_view operation, int fd, std::size_t size_bytes, bool writable) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* address = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
    throw_errno(errno, operation, {}, "mmap");
  }
  return unique_mapping(mapping_value{address, size_bytes});
}

void random_bytes(std::span<std::uint8_t> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto rest = bytes.subspan(done);
    done += static_cast<std::size_t>(checked(
        "random", {}, "getrandom", [&] { return ::getrandom(rest.data(), rest.size(), 0); }));
  }
}

std::optional<std::string> read_small_file(const std::string& path, std::size_t limit_bytes) {
  const unique_fd fd(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) {
    return std::nullopt;
  }
  // In pieces: `limit_bytes` is an upper bound, not the expected size.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): written before it is read
  std::array<char, 16'384> piece;
  std::string text;
  while (text.size() < limit_bytes) {
    const auto count = retry([&] {
      return ::read(fd.get(), piece.data(), std::min(piece.size(), limit_bytes - text.size()));
    });
    if (count < 0) {
      return std::nullopt;
    }
    if (count == 0) {
      break;
    }
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return text;
}

unique_fd try_lock_file(std::string_view operation, const std::string& path) {
  unique_fd lock(checked(operation, path, "open", [&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }));
  const auto take = [&] { return ::flock(lock.get(), LOCK_EX | LOCK_NB); };
  if (checked(operation, path, "flock", take, {EWOULDBLOCK}) == -1) {
    lock.reset();
  }
  return lock;
}

}  // namespace gpushm::base
