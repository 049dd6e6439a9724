// SPDX-License-Identifier: Apache-2.0
#include "client/ticket/ticket_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/files/guarded_fd.hpp"
#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/ticket.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

/// Poll interval for a new file. No event reports it on every kind of shared volume.
constexpr milliseconds file_poll{10};

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// True if a live process holds the file's lock. The lock belongs to an open file description, so
/// it ends with its process, in any container.
bool is_locked(int fd) {
  struct flock lock = whole_file(F_RDLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool is_same_file(int fd, const std::string& path) {
  struct stat own {};
  struct stat current {};
  return ::fstat(fd, &own) == 0 && ::stat(path.c_str(), &current) == 0 &&
         own.st_dev == current.st_dev && own.st_ino == current.st_ino;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const auto count = base::checked(
        "export", path, "write", [&] { return ::write(fd, bytes.data(), bytes.size()); });
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

/// Upper bound of the time in which another exporter replaces a dead one's file.
constexpr milliseconds max_replace_time{2'000};

bool is_unsupported(int number) {
  return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
}

/// A file of another name in the same directory, deleted unless it is renamed to `path`.
class temporary_file {
 public:
  explicit temporary_file(const std::string& path)
      : path_(path), name_(path + ".XXXXXX"), fd_(base::guarded_fd::open([&] {
          return base::checked(
              "export", path, "mkostemp", [&] { return ::mkostemp(name_.data(), O_CLOEXEC); });
        })) {}
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() {
    if (!name_.empty()) {
      ::unlink(name_.c_str());
    }
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Renames the file to `path` unless that exists; returns whether it was renamed.
  [[nodiscard]] bool create_if_absent() {
    if (base::retry([&] { return rename_with(RENAME_NOREPLACE); }) == 0) {
      name_.clear();
      return true;
    }
    if (is_unsupported(errno)) {  // for example on NFS
      base::checked(
          "export", path_, "link", [&] { return ::link(name_.c_str(), path_.c_str()); }, {EEXIST});
      if (is_same_file(fd_.get(), path_)) {
        ::unlink(std::exchange(name_, {}).c_str());
        return true;
      }
      return false;
    }
    if (errno != EEXIST) {
      base::throw_errno(errno, "export", path_, "renameat2");
    }
    return false;
  }

  /// Replaces `dead`, the file at `path`, which the caller has locked. Returns false if another
  /// file has replaced it meanwhile; that file remains.
  [[nodiscard]] bool replace(int dead) {
    if (base::retry([&] { return rename_with(RENAME_EXCHANGE); }) == 0) {
      if (is_same_file(dead, name_)) {
        ::unlink(std::exchange(name_, {}).c_str());
        return true;
      }
      base::checked(
          "export", path_, "renameat2", [&] { return rename_with(RENAME_EXCHANGE); }, {ENOENT});
      return false;
    }
    if (errno == ENOENT) {
      return false;
    }
    if (!is_unsupported(errno)) {
      base::throw_errno(errno, "export", path_, "renameat2");
    }
    rename();
    return true;
  }

  /// Replaces the file at `path`, if there is one.
  void rename() {
    base::checked(
        "export", path_, "rename", [&] { return ::rename(name_.c_str(), path_.c_str()); });
    name_.clear();
  }

  [[nodiscard]] base::guarded_fd take() noexcept { return std::move(fd_); }

 private:
  [[nodiscard]] int rename_with(unsigned int flags) const {
    return ::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, path_.c_str(), flags);
  }

  std::string path_;
  std::string name_;
  base::guarded_fd fd_;
};

[[noreturn]] void throw_in_use(const std::string& path, std::string_view cause) {
  throw error(
      errc::address_in_use, "export", path, cause, "stop that process, or export to another file");
}

/// Exactly one of concurrent exporters succeeds. If there is no file, the kernel decides which one.
/// A dead exporter's file is replaced by the exporter that locks it with flock; this is not the
/// lock that marks a live exporter.
void create_or_replace(temporary_file& file, const std::string& path) {
  const auto deadline = clock::now() + max_replace_time;
  while (!file.create_if_absent()) {
    const auto open_with = [&](int mode) {
      return base::guarded_fd::open([&] {
        return base::retry(
            [&] { return ::open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW); });
      });
    };
    // NFS locks only files that are open for writing.
    auto existing = open_with(O_RDWR);
    if (!existing) {
      existing = open_with(O_RDONLY);
    }
    if (!existing) {
      if (errno == ENOENT) {
        continue;
      }
      base::throw_errno(errno, "export", path, "open");
    }
    if (is_locked(existing.get())) {
      throw_in_use(path, "a live process is exporting to this file");
    }
    if (base::retry([&] { return ::flock(existing.get(), LOCK_EX | LOCK_NB); }) == 0) {
      if (is_same_file(existing.get(), path) && !is_locked(existing.get()) &&
          file.replace(existing.get())) {
        return;
      }
    } else if (errno != EWOULDBLOCK) {
      base::throw_errno(errno, "export", path, "flock");
    }
    if (clock::now() > deadline) {
      throw_in_use(path, "another process is about to export to this file");
    }
    base::pause_before_retry(milliseconds(1));
  }
}

enum class file_status : unsigned char { absent, dead_exporter, live_exporter };

/// Reads the file's bytes. An exporter that replaces its file unlocks the previous one after that:
/// then the file of that name is read again.
file_status read_file(const std::string& path, std::vector<std::byte>& bytes) {
  constexpr int most_replacements = 1'000;
  for (int replaced = 0;; ++replaced) {
    const base::unique_fd fd(
        base::checked("import",
                      path,
                      "open",
                      [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); },
                      {ENOENT, ENOTDIR}));
    if (!fd) {
      return file_status::absent;
    }
    // One byte more than allowed, so that the decoder detects a larger file.
    bytes.resize(wire::max_ticket_bytes + 1);
    const auto count = base::checked(
        "import", path, "read", [&] { return ::pread(fd.get(), bytes.data(), bytes.size(), 0); });
    bytes.resize(static_cast<std::size_t>(count));
    if (is_locked(fd.get())) {
      return file_status::live_exporter;
    }
    if (replaced == most_replacements || is_same_file(fd.get(), path)) {
      return file_status::dead_exporter;
    }
  }
}

bool is_ticket(std::span<const std::byte> bytes) {
  try {
    static_cast<void>(wire::decode_ticket(bytes));
    return true;
  } catch (const error& why) {
    return why.code() != errc::invalid_ticket;
  }
}

/// Errors of an import while the exporter exits: the segment or the process no longer exists.
bool is_end_of_exporter(errc code) {
  return code == errc::peer_died || code == errc::no_such_segment ||
         code == errc::gone_or_replaced || code == errc::broker_gone;
}

[[noreturn]] void throw_status(file_status status,
                               const std::string& path,
                               std::span<const std::byte> bytes,
                               bool has_waited) {
  if (status == file_status::absent) {
    throw error(
        errc::no_such_segment,
        "import",
        path,
        has_waited ? "the file did not appear within the timeout" : "the file does not exist",
        has_waited ? "start the exporter, or give a longer timeout"
                   : "start the exporter, or wait for its file with a timeout");
  }
  if (!is_ticket(bytes)) {
    throw error(errc::invalid_ticket,
                "import",
                path,
                "the file contains no ticket, and no process exports into it",
                "pass a file that an exporter has written");
  }
  throw error(errc::peer_died,
              "import",
              path,
              has_waited ? "the process that exported into this file has died, and no other did "
                           "within the timeout"
                         : "the process that exported into this file has died",
              has_waited ? "start the exporter again, or give a longer timeout"
                         : "start the exporter again, or wait for its file with a timeout");
}

/// Called while the file does not exist.
void pause_before_poll(const std::string& path, const std::stop_token& stop) {
  if (stop.stop_requested()) {
    throw error(
        errc::cancelled, "import", path, "the wait for its exporter was stopped", "call again");
  }
  base::pause_before_retry(file_poll);
}

/// Locks the file before it has its name.
void write_locked(const temporary_file& file,
                  std::span<const std::byte> ticket,
                  unsigned int mode,
                  const std::string& path) {
  base::checked("export", path, "fchmod", [&] { return ::fchmod(file.fd(), mode); });
  struct flock lock = whole_file(F_WRLCK);
  base::checked(
      "export", path, "fcntl(F_OFD_SETLK)", [&] { return ::fcntl(file.fd(), F_OFD_SETLK, &lock); });
  write_all(file.fd(), ticket, path);
}

}  // namespace

std::vector<std::byte> read_ticket(const std::string& path,
                                   milliseconds timeout,
                                   const std::stop_token& stop) {
  const auto deadline = base::deadline_after(timeout);
  std::vector<std::byte> bytes;
  for (bool has_waited = false;; has_waited = true) {
    const file_status status = read_file(path, bytes);
    if (status == file_status::live_exporter) {
      if (bytes.size() > wire::max_ticket_bytes) {
        throw error(errc::invalid_ticket,
                    "import",
                    path,
                    "the file has more than " + std::to_string(wire::max_ticket_bytes) + " bytes",
                    "pass a file that an exporter has written");
      }
      return bytes;
    }
    if (clock::now() + file_poll > deadline) {
      throw_status(status, path, bytes, has_waited);
    }
    pause_before_poll(path, stop);
  }
}

segment_ptr import_ticket_file(const std::string& path, const import_options& options) {
  const auto deadline = base::deadline_after(options.timeout);
  import_options here = options;
  if (here.directory.empty()) {
    const auto parent = std::filesystem::path(path).parent_path();
    here.directory = parent.empty() ? "." : parent.string();
  }
  for (;;) {
    const auto bytes = read_ticket(path, base::time_left(deadline), options.stop);
    try {
      return import_ticket(bytes, here);
    } catch (const error& why) {
      // The exporter exited between the check of the file and the import: its successor may come in
      // time.
      if (!is_end_of_exporter(why.code()) || clock::now() + file_poll > deadline) {
        throw why.in("import", path);
      }
    }
    pause_before_poll(path, options.stop);
  }
}

ticket_file::ticket_file(std::string path, std::span<const std::byte> ticket, unsigned int mode)
    : path_(std::move(path)), mode_(mode) {
  temporary_file file(path_);
  write_locked(file, ticket, mode_, path_);
  create_or_replace(file, path_);
  file_ = file.take();
}

void ticket_file::replace(std::span<const std::byte> ticket) {
  temporary_file file(path_);
  write_locked(file, ticket, mode_, path_);
  // This process's lock keeps other exporters from replacing it meanwhile.
  if (is_same_file(file_.get(), path_)) {
    file.rename();
  } else {
    create_or_replace(file, path_);
  }
  file_ = file.take();  // unlocks the previous file, of which no name is left
}

ticket_file::~ticket_file() {
  // A forked child's copy has no lock; the file belongs to its parent.
  if (file_ && is_same_file(file_.get(), path_) && ::unlink(path_.c_str()) != 0) {
    base::log(log_level::warning, "remove " + path_ + ": " + base::errno_text(errno));
  }
}

}  // namespace gpushm::client_detail
