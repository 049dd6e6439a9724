// SPDX-License-Identifier: Apache-2.0
#include "sync/timeline_page_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "sync/futex.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::sync {

namespace {

constexpr const char* operation = "make a timeline page";
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The page's rows, as another process has left them.
struct rows {
  std::array<std::uint64_t, words_per_page> words{};
  std::array<std::uint64_t, words_per_page> last{};
  std::array<std::uint32_t, words_per_page> flags{};
};
static_assert(sizeof(rows) == sizeof(timeline_page));

/// Whether these bytes are allocated.
bool has_memory(int page, std::size_t offset, std::size_t count) noexcept {
  constexpr off_t block_bytes = 512;
  struct stat info {};
  if (::fstat(page, &info) == 0 && info.st_blocks * block_bytes >= info.st_size) {
    return true;
  }
  // Memory that was only reserved, by `fallocate`, also counts as a hole.
  return ::lseek(page, static_cast<off_t>(offset), SEEK_HOLE) >= static_cast<off_t>(offset + count);
}

class ender {
 public:
  ender(int file, holes holes) noexcept : file_(file), may_fill_(holes == holes::fill) {}

  void end() noexcept {
    rows page;
    if (::pread(file_, &page, sizeof(page), 0) != static_cast<ssize_t>(sizeof(page))) {
      failed();  // it ends without its last values
    }
    for (std::size_t i = 0; i != page.words.size(); ++i) {
      if (!is_terminal(page.words[i])) {
        page.last[i] = page.words[i];
      }
    }
    write(&page.last, sizeof(page.last), offsetof(timeline_page, last));
    std::array<std::size_t, words_per_page> used{};
    std::size_t count = 0;
    for (std::size_t i = 0; i != page.words.size(); ++i) {
      const bool may_be_used = (page.flags[i] & in_use) != 0 || page.words[i] != 0;
      if (may_be_used && !is_terminal(page.words[i])) {
        // Little-endian: the first byte of the number is the last one in memory.
        const std::uint8_t first = ended_byte;
        if (write(&first, 1, i * sizeof(page.words[i]) + sizeof(page.words[i]) - 1)) {
          used[count++] = i;  // a wake of a hole would allocate it
        }
      }
    }
    wake({used.data(), count});
    for (std::uint64_t& word : page.words) {
      word = is_terminal(word) ? word : ended_word;
    }
    write(&page.words, sizeof(page.words), 0);
  }

 private:
  /// Returns false if these bytes are a hole, which stays.
  bool write(const void* bytes, std::size_t count, std::size_t offset) noexcept {
    if (!may_fill_ && !has_memory(file_, offset, count)) {
      return false;
    }
    if (::pwrite(file_, bytes, count, static_cast<off_t>(offset)) != static_cast<ssize_t>(count)) {
      failed();
    }
    return true;
  }
  /// Processes that wait for a word that its signaler has never used look again within 100 ms.
  void wake(std::span<const std::size_t> ended) noexcept {
    void* const address = ::mmap(nullptr, timeline_page_bytes, PROT_READ, MAP_SHARED, file_, 0);
    if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
      failed();                   // sleepers look again within 100 ms
      return;
    }
    for (const std::size_t i : ended) {
      wake_all(static_cast<const timeline_page*>(address)->words[i]);
    }
    ::munmap(address, timeline_page_bytes);
  }
  void failed() noexcept {
    if (!has_failed_) {
      has_failed_ = true;
      base::log(log_level::error, "a timeline page could not be ended completely");
    }
  }

  int file_;
  bool may_fill_;
  bool has_failed_ = false;
};

}  // namespace

base::guarded_fd make_timeline_page(std::uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  auto result = base::guarded_fd::open([] {
    return base::checked(operation, {}, "memfd_create", [] {
      return ::memfd_create("gpushm-signals", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    });
  });
  const int fd = result.get();
  base::checked(operation, {}, "ftruncate", [&] { return ::ftruncate(fd, size); });
  base::checked(
      operation, {}, "fcntl(F_ADD_SEALS)", [&] { return ::fcntl(fd, F_ADD_SEALS, seals); });
  base::checked(operation, {}, "fchmod", [&] { return ::fchmod(fd, 0600); });
  return result;
}

void fill_timeline_page(int writable, std::uint64_t bytes) {
  base::checked(operation, {}, "fallocate", [&] {
    return ::fallocate(writable, 0, 0, static_cast<off_t>(bytes));
  });
}

bool is_timeline_page(int fd, std::uint64_t bytes) noexcept {
  struct stat info {};
  return ::fcntl(fd, F_GET_SEALS) == seals && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         (info.st_mode & 0777U) == 0600U && is_timeline_page_size(bytes) &&
         info.st_size == static_cast<off_t>(bytes);
}

bool is_open_for_writing(int fd) noexcept {
  return (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

static_assert(ended_bytes == sizeof(rows::words) + sizeof(rows::last));

bool has_holes(int page) noexcept {
  return !has_memory(page, 0, ended_bytes);
}

void end_signals(int writable, holes holes) noexcept {
  ender(writable, holes).end();
}

}  // namespace gpushm::sync
