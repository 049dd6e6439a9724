// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/local_pages.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "base/files/syscall.hpp"
#include "base/process/process.hpp"
#include "client/session/fence_proof.hpp"
#include "client/timeline/signaler_watch.hpp"
#include "sync/timeline_page_file.hpp"

namespace gpushm::client_detail {

namespace {

constexpr const char* operation = "import";

error gone(std::string_view cause) {
  return {errc::gone_or_replaced,
          operation,
          {},
          cause,
          "have its process create another one, and send its ticket"};
}

error died(std::int32_t pid) {
  return {errc::peer_died,
          operation,
          {},
          "its process " + std::to_string(pid) + " has ended",
          "create it again in a running process",
          {.pid = pid}};
}

/// The objects that keep a page of another process usable.
class watched_signaler {
 public:
  watched_signaler(std::shared_ptr<signaler_watch> watch, signaler_watch::signaler signaler)
      : by_(std::move(watch)), number_(by_->add(std::move(signaler))) {}
  watched_signaler(const watched_signaler&) = delete;
  watched_signaler& operator=(const watched_signaler&) = delete;
  ~watched_signaler() { by_->remove(number_); }

 private:
  std::shared_ptr<signaler_watch> by_;
  std::uint64_t number_;
};

base::guarded_fd open_path(const std::string& path, int flags) {
  return base::guarded_fd::open([&] {
    return base::checked(
        operation, path, "open", [&] { return ::open(path.c_str(), flags | O_CLOEXEC); }, {ENOENT});
  });
}

/// A descriptor of another process, which may be anything: it is not opened before it was looked
/// at, since an open of a device or a pipe has effects.
base::guarded_fd open_other(std::int32_t pid, std::int32_t number, struct stat& info) {
  auto file = open_path("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number), O_PATH);
  if (!file || ::fstat(file.get(), &info) != 0) {
    throw gone("its process has closed it");
  }
  return file;
}

base::guarded_fd reopen(const base::guarded_fd& file, int flags) {
  auto result = open_path("/proc/thread-self/fd/" + std::to_string(file.get()), flags);
  if (!result) {
    throw gone("its process has closed it");
  }
  return result;
}

base::guarded_fd open_page_file(const base::process_identity& identity,
                                const wire::word_reference& reference) {
  struct stat info {};
  const auto file = open_other(identity.pid, reference.file, info);
  if (!S_ISREG(info.st_mode) || info.st_dev != reference.file_system ||
      info.st_ino != reference.inode) {
    throw gone("its process has closed it");
  }
  auto result = reopen(file, O_RDWR);
  if (!sync::is_timeline_page(result.get(), sync::timeline_page_bytes)) {
    throw error(errc::invalid_ticket,
                operation,
                {},
                "it names a file that is not a timeline page",
                "report this as a bug of the program that sent it");
  }
  return result;
}

base::guarded_fd open_life_pipe(const base::process_identity& identity,
                                const wire::word_reference& reference) {
  struct stat info {};
  const auto file = open_other(identity.pid, reference.life_pipe, info);
  if (!S_ISFIFO(info.st_mode)) {
    throw error(errc::invalid_ticket,
                operation,
                {},
                "it names a file that is not a life pipe",
                "report this as a bug of the program that sent it");
  }
  return reopen(file, O_RDONLY | O_NONBLOCK);
}

bool has_ended(const base::guarded_fd& pidfd) {
  pollfd end{pidfd.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) != 0;
}

signaler_watch::signaler open_signaler(const wire::ticket& described) {
  const base::process_identity& identity = described.exporter;
  auto process = base::look_up(identity);
  if (process.has_ended.value_or(false)) {
    throw died(identity.pid);
  }
  if (!process.has_ended || !process.pidfd) {
    throw error(errc::peer_unreachable,
                operation,
                {},
                process.has_ended
                    ? "this kernel has no pidfd, by which its end would be noticed"
                    : "its process is in another PID namespace, or on another machine",
                "use a timeline of a broker: its socket reaches other containers");
  }
  signaler_watch::signaler result;
  result.page = std::make_shared<const base::guarded_fd>(open_page_file(identity, *described.word));
  result.life = open_life_pipe(identity, *described.word);
  if (has_ended(process.pidfd)) {  // its number may have been another process's since
    throw died(identity.pid);
  }
  result.process = std::move(process.pidfd);
  return result;
}

/// Makes a page of this process. Its ticket is that of its first timeline.
std::pair<std::shared_ptr<mapped_page>, wire::ticket> create_page() {
  if (fence_proof().kind() == fence::none) {
    throw error(
        errc::not_exportable,
        "create",
        {},
        "nothing tells others when this process can no longer write: it may use MPS, or this "
        "kernel has no pidfd",
        "use a timeline of a broker, which then waits for a documented time");
  }
  auto file =
      std::make_shared<base::guarded_fd>(sync::make_timeline_page(sync::timeline_page_bytes));
  sync::fill_timeline_page(file->get(), sync::timeline_page_bytes);
  struct stat info {};
  base::checked("create", {}, "fstat", [&] { return ::fstat(file->get(), &info); });
  wire::ticket described;
  described.backend = backend::timeline;
  described.size_bytes = described.allocated_bytes = sizeof(std::uint64_t);
  described.exporter = base::this_process();
  described.word = wire::word_reference{
      file->get(), static_cast<std::uint64_t>(info.st_dev), info.st_ino, base::life_pipe(), 0};
  const int number = file->get();
  return {std::make_shared<mapped_page>(number, true, std::move(file)), described};
}

}  // namespace

local_pages& local_pages::instance() {
  static auto* const result = new local_pages;  // NOLINT(cppcoreguidelines-owning-memory): kept
  return *result;
}

namespace {
// Created when the library is loaded: a forked child must not find it half constructed.
[[maybe_unused]] const local_pages& created_at_load = local_pages::instance();
}  // namespace

/// The parent's objects cannot be used, nor ended, in a child.
void local_pages::forget_in_child() {
  if (base::is_forked_child_of(created_in_)) {
    all_.clear();
    newest_.reset();
    watch_.reset();
    created_in_ = base::fork_generation();
  }
}

std::shared_ptr<mapped_page> local_pages::find(const key& key) {
  const std::lock_guard lock(mutex_);
  forget_in_child();
  std::erase_if(all_, [](const auto& each) { return each.second.expired(); });
  const auto at = all_.find(key);
  return at == all_.end() ? nullptr : at->second.lock();
}

std::shared_ptr<mapped_page> local_pages::remember(const key& key,
                                                   std::shared_ptr<mapped_page> page) {
  const std::lock_guard lock(mutex_);
  auto& place = all_[key];
  if (auto earlier = place.lock()) {
    return earlier;
  }
  place = page;
  return page;
}

std::pair<timeline_range, wire::ticket> local_pages::take() {
  const auto take_next = [this](std::shared_ptr<mapped_page> page) {
    const std::uint32_t word = next_timeline_++;
    wire::ticket described = ticket_of_newest_;
    described.word->word = word;
    return std::make_pair(timeline_range{std::move(page), word}, std::move(described));
  };
  {
    const std::lock_guard lock(mutex_);
    forget_in_child();
    if (auto page = newest_.lock(); page && next_timeline_ != sync::words_per_page) {
      return take_next(std::move(page));
    }
  }
  auto [page, described] = create_page();
  const key which{described.word->file_system, described.word->inode};
  page = remember(which, std::move(page));
  const std::lock_guard lock(mutex_);
  // Another thread may also have created one: both are used.
  newest_ = page;
  ticket_of_newest_ = std::move(described);
  next_timeline_ = 0;
  return take_next(std::move(page));
}

std::shared_ptr<signaler_watch> local_pages::watch() {
  {
    const std::lock_guard lock(mutex_);
    if (auto known = watch_.lock()) {
      return known;
    }
  }
  auto created = std::make_shared<signaler_watch>();
  const std::lock_guard lock(mutex_);
  if (auto known = watch_.lock()) {
    return known;  // of another thread; `created` ends after the lock was released
  }
  watch_ = created;
  return created;
}

timeline_range local_pages::open(const wire::ticket& described) {
  const key which{described.word->file_system, described.word->inode};
  if (auto known = find(which)) {
    return {std::move(known), described.word->word};
  }
  if (described.exporter == base::this_process()) {
    throw gone("this process has closed it");
  }
  signaler_watch::signaler who = open_signaler(described);
  const auto file = who.page;  // the watch closes its own when the process has ended
  auto keeps = std::make_shared<watched_signaler>(watch(), std::move(who));
  auto page = std::make_shared<mapped_page>(file->get(), false, std::move(keeps));
  return {remember(which, std::move(page)), described.word->word};
}

}  // namespace gpushm::client_detail
