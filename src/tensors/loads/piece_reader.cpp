// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/piece_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"
#include "tensors/loads/copy_lane.hpp"

namespace gpushm::tensors {

namespace {

constexpr const char* operation = "load";
constexpr std::uint64_t block = copy_lane::block_bytes;

/// Whether at least half of 16 samples are in the page cache, or that cannot be queried.
bool is_cached(const model_file& file) {
  constexpr std::uint64_t samples = 16;
  std::uint64_t present = 0;
  for (std::uint64_t i = 0; i != samples; ++i) {
    std::array<std::byte, 1> byte{};
    const iovec into{byte.data(), byte.size()};
    const auto offset = static_cast<off_t>(file.size_bytes / samples * i);
    const ssize_t got = ::preadv2(file.file.get(), &into, 1, offset, RWF_NOWAIT);
    if (got < 0 && errno != EAGAIN) {
      return true;
    }
    present += got > 0 ? 1 : 0;
  }
  return 2 * present >= samples;
}

/// The same file, not the one that has its path now; empty: no such reads of it.
base::guarded_fd open_direct(const model_file& file) {
  const std::string again = "/proc/self/fd/" + std::to_string(file.file.get());
  auto result = base::guarded_fd::open([&] {
    // EINVAL: this file system has no such reads. The others: there is no /proc, or it refuses.
    return base::checked(operation,
                         file.path,
                         "open",
                         [&] { return ::open(again.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT); },
                         {EINVAL, ENOENT, ENOTDIR, ELOOP, EACCES, EPERM});
  });
  if (result) {
    struct stat first {};
    struct stat second {};
    const auto look = [&](int descriptor, struct stat& into) {
      base::checked(operation, file.path, "fstat", [&] { return ::fstat(descriptor, &into); });
    };
    look(file.file.get(), first);
    look(result.get(), second);
    if (first.st_dev != second.st_dev || first.st_ino != second.st_ino) {
      result.reset();
    }
  }
  return result;
}

[[noreturn]] void too_short(const std::string& path) {
  throw error(errc::invalid_file,
              operation,
              path,
              "it has become shorter while it was read",
              std::string(when_written));
}

}  // namespace

piece_reader::piece_reader(std::span<const model_file> files, reading reading)
    : files_(files), direct_(files.size()) {
  for (std::size_t i = 0; i != files.size(); ++i) {
    // Of a file whose tensors are not wanted, only the header is read.
    if (files[i].contents.all.empty() || reading == reading::cached ||
        (reading == reading::automatic && is_cached(files[i]))) {
      continue;
    }
    direct_[i] = open_direct(files[i]);
  }
}

std::uint64_t piece_reader::step(std::uint64_t offset, std::uint64_t left) {
  const std::uint64_t bytes = step_bytes - offset % block;
  return left <= bytes + block ? left : bytes;
}

const std::byte* piece_reader::read(const file_range& range, std::byte* buffer) const {
  const model_file& from = files_[range.file];
  const bool is_direct = static_cast<bool>(direct_[range.file]);
  const int file = is_direct ? direct_[range.file].get() : from.file.get();
  std::byte* const first = buffer + range.offset % block;
  const std::uint64_t begin = is_direct ? range.offset / block * block : range.offset;
  std::byte* const into = is_direct ? buffer : first;
  const std::uint64_t end = range.offset + range.bytes;
  const std::uint64_t until = is_direct ? (end + block - 1) / block * block : end;
  std::uint64_t at = begin;
  int without_progress = 0;
  while (at < end) {
    const std::uint64_t before = at;
    const ssize_t got = base::checked(operation, from.path, "pread", [&] {
      return ::pread(file, into + (at - begin), until - at, static_cast<off_t>(at));
    });
    if (got == 0) {
      too_short(from.path);
    }
    at += static_cast<std::uint64_t>(got);
    if (is_direct && at < end) {
      at = at / block * block;  // a read of a part of a block: again, from its boundary
      constexpr int retries = 16;
      if (at == before && ++without_progress == retries) {
        too_short(from.path);  // the block at its end
      }
    }
  }
  return first;
}

}  // namespace gpushm::tensors
