// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "client/fork_guard.hpp"
#include "gpushm/error.hpp"
#include "gpushm/exchange.hpp"
#include "wire/descriptor.hpp"

namespace gpushm {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

/// How soon a new file is seen. There is no event for it that works on every shared volume.
constexpr milliseconds file_poll{10};

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Is somebody alive who holds the file's lock? It belongs to an open file, so it ends with its
/// process, in whatever container that is.
bool is_locked(int fd) {
  struct flock lock = whole_file(F_RDLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool is_same_file(int fd, const std::string& path) {
  struct stat mine {};
  struct stat there {};
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const auto count = base::checked(
        "export", path, "write", [&] { return ::write(fd, bytes.data(), bytes.size()); });
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

/// A file of another name in the same directory, deleted unless it is renamed.
class temporary_file {
 public:
  explicit temporary_file(const std::string& path)
      : name_(path + ".XXXXXX"), fd_(base::checked("export", path, "mkostemp", [&] {
          return ::mkostemp(name_.data(), O_CLOEXEC);
        })) {}
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() {
    if (!name_.empty()) {
      ::unlink(name_.c_str());
    }
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] base::unique_fd rename_to(const std::string& path) {
    base::checked("export", path, "rename", [&] { return ::rename(name_.c_str(), path.c_str()); });
    name_.clear();
    return std::move(fd_);
  }

 private:
  std::string name_;
  base::unique_fd fd_;
};

enum class file_status : unsigned char { absent, of_the_dead, of_the_living };

/// One look at the file; its bytes when its exporter lives.
file_status look(const std::string& path, std::vector<std::byte>& bytes) {
  const base::unique_fd fd(
      base::checked("import",
                    path,
                    "open",
                    [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); },
                    {ENOENT, ENOTDIR}));
  if (!fd) {
    return file_status::absent;
  }
  if (!is_locked(fd.get())) {
    return file_status::of_the_dead;
  }
  // One byte more than is allowed, so that too much is seen by the decoder.
  bytes.resize(wire::max_descriptor_bytes + 1);
  const auto count = base::checked(
      "import", path, "read", [&] { return ::pread(fd.get(), bytes.data(), bytes.size(), 0); });
  bytes.resize(static_cast<std::size_t>(count));
  return file_status::of_the_living;
}

/// What an import may meet while the exporter goes: no segment any more, no process any more.
bool is_end_of_exporter(errc code) {
  return code == errc::peer_died || code == errc::no_such_segment || code == errc::stale ||
         code == errc::broker_gone;
}

[[noreturn]] void throw_status(file_status status, const std::string& path) {
  if (status == file_status::absent) {
    throw error(errc::no_such_segment,
                "import",
                path,
                "there is no such file",
                "start the exporter; a timeout waits for its file");
  }
  throw error(errc::peer_died,
              "import",
              path,
              "the process that exported into this file has died",
              "start the exporter again; a timeout waits for its file");
}

}  // namespace

class descriptor_file::impl {
 public:
  impl(std::string path, std::span<const std::byte> descriptor, unsigned int mode)
      : path_(std::move(path)) {
    check_replaceable();
    temporary_file file(path_);
    base::checked("export", path_, "fchmod", [&] { return ::fchmod(file.fd(), mode); });
    struct flock lock = whole_file(F_WRLCK);
    base::checked("export", path_, "fcntl(F_OFD_SETLK)", [&] {
      return ::fcntl(file.fd(), F_OFD_SETLK, &lock);
    });
    write_all(file.fd(), descriptor, path_);
    file_ = file.rename_to(path_);
    closes_in_child_.emplace(file_.get());
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() {
    if (is_same_file(file_.get(), path_) && ::unlink(path_.c_str()) != 0) {
      base::log(log_level::warning, "remove " + path_ + ": " + base::errno_text(errno));
    }
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  void check_replaceable() const {
    const base::unique_fd there(
        base::retry([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
    if (there && is_locked(there.get())) {
      throw error(errc::address_in_use,
                  "export",
                  path_,
                  "a living process exports into this file",
                  "stop that process, or export into another file");
    }
  }

  std::string path_;
  base::unique_fd file_;  // holds the lock
  // A forked child's copy would hold the lock past this process's death.
  std::optional<detail::fork_closes> closes_in_child_;
};

descriptor_file::descriptor_file(const std::string& path,
                                 std::span<const std::byte> descriptor,
                                 unsigned int mode)
    : impl_(std::make_unique<impl>(path, descriptor, mode)) {}
descriptor_file::descriptor_file(descriptor_file&&) noexcept = default;
descriptor_file& descriptor_file::operator=(descriptor_file&&) noexcept = default;
descriptor_file::~descriptor_file() = default;

const std::string& descriptor_file::path() const noexcept {
  static const std::string none;
  return impl_ ? impl_->path() : none;
}

std::vector<std::byte> read_descriptor_file(const std::string& path, milliseconds timeout) {
  const auto deadline = clock::now() + timeout;
  std::vector<std::byte> bytes;
  for (;;) {
    const file_status status = look(path, bytes);
    if (status == file_status::of_the_living) {
      return bytes;
    }
    if (clock::now() + file_poll > deadline) {
      throw_status(status, path);
    }
    base::pause_before_retry(file_poll);
  }
}

segment import_file(const std::string& path, const import_options& options) {
  const auto deadline = clock::now() + options.timeout;
  import_options here = options;
  if (here.directory.empty()) {
    const auto parent = std::filesystem::path(path).parent_path();
    here.directory = parent.empty() ? "." : parent.string();
  }
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - clock::now());
    const auto bytes = read_descriptor_file(path, std::max(left, milliseconds(0)));
    try {
      return import_memory(bytes, here);
    } catch (const error& why) {
      // It ended between our look at the file and the import: its successor may come in time.
      if (!is_end_of_exporter(why.code()) || clock::now() + file_poll > deadline) {
        throw why.in("import", path);
      }
    }
    base::pause_before_retry(file_poll);
  }
}

}  // namespace gpushm
