// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/keeper.hpp"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "base/files/descriptor_numbers.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_handle.hpp"
#include "base/process/deadline.hpp"
#include "base/process/signals.hpp"
#include "base/report/log.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/listener.hpp"
#include "succession/descriptor_store/notification_socket.hpp"
#include "succession/descriptor_store/takeover.hpp"
#include "succession/keeper/guard.hpp"
#include "succession/keeper/worker.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;

constexpr std::string_view operation = "keep descriptors";
/// Descriptors that the keeper itself and the start of a program need.
constexpr std::size_t reserved_descriptors = 32;
/// The largest number of a stored descriptor, even if the open file limit is larger: Linux's
/// default for the largest limit (fs.nr_open).
constexpr std::size_t largest_number = 1'048'576;
/// Between two attempts to find out whether another keeper starts at this moment.
constexpr milliseconds retry_pause{10};

/// Raises the soft limit first: a broker also does that, and stores as many here.
std::size_t raised_open_file_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) {
    limit = raised;
  }
  return std::min(static_cast<std::size_t>(limit.rlim_cur), largest_number);
}

std::size_t most_descriptors(std::size_t limit) {
  return limit > 2 * reserved_descriptors ? limit - reserved_descriptors : reserved_descriptors;
}

/// Creates the directory of a socket, for this user only, if there is none; binding the socket
/// reports a failure.
const std::string& with_directory(const std::string& path) {
  static_cast<void>(::mkdir(path.substr(0, path.find_last_of('/')).c_str(), S_IRWXU));
  return path;
}

struct directory_traits {
  using value_type = DIR*;
  static DIR* empty() noexcept { return nullptr; }
  static void close(DIR* directory) noexcept { ::closedir(directory); }
};

/// Numbers of this process's open descriptors.
std::vector<int> open_descriptors() {
  const base::unique_handle<directory_traits> directory(::opendir("/proc/self/fd"));
  base::checked(operation, "/proc/self/fd", "opendir", [&] { return directory ? 0 : -1; });
  std::vector<int> result;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the only thread
  while (const dirent* const each = ::readdir(directory.get())) {
    const auto number = base::number<int>(std::string_view(&each->d_name[0]));
    if (number && *number != ::dirfd(directory.get())) {
      result.push_back(*number);
    }
  }
  return result;
}

/// A worker that fails while descriptors are stored is replaced, as one that is killed.
std::optional<int> work_or_die(const worker_context& context) {
  try {
    return work(context);
  } catch (const std::exception& why) {
    if (context.stored.empty()) {
      throw;
    }
    base::log(log_level::error, why.what());
    base::signal_process(::getpid(), SIGKILL);
    throw;
  }
}

}  // namespace

class keeper::impl {
 public:
  explicit impl(keeper_options options)
      : options_(std::move(options)), foreign_(open_descriptors()), stored_(open_file_limit_) {
    if (options_.argv.empty()) {
      throw error(errc::invalid_argument,
                  std::string(operation),
                  {},
                  "no program to start",
                  "name it after --");
    }
    // The program relies on it.
    base::reserve_descriptor_numbers();  // its two processes share the table
    const std::size_t most = most_descriptors(open_file_limit_);
    options_.max_descriptors =
        options_.max_descriptors == 0 ? most : std::min(options_.max_descriptors, most);
    shared_->socket.take(bind_notification_socket(with_directory(options_.socket_path)));
    try {
      if (!options_.takeover_path.empty()) {
        take_over_or_listen();
      }
    } catch (...) {
      ::unlink(options_.socket_path.c_str());
      throw;
    }
  }

  int run() {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int each : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
      sigaddset(&handled, each);
    }
    sigset_t original{};
    ::pthread_sigmask(SIG_BLOCK, &handled, &original);
    shared_->start_at.set(std::chrono::steady_clock::now());
    return run_guarded(
        {[&](int guard) {
           return work_or_die({options_, shared_[0], stored_, handled, original, foreign_, guard});
         },
         [this](int number) {
           (number == SIGHUP ? shared_->is_to_be_replaced : shared_->is_ending) = true;
         },
         handled});
  }

 private:
  void take_over_or_listen() {
    const std::string& path = options_.takeover_path;
    const auto deadline = base::deadline_after(options_.takeover_timeout);
    for (;;) {
      if (auto all = take_over(path, base::time_left(deadline))) {
        continue_with(std::move(*all));
        shared_->ready_by.set(deadline);
        return;
      }
      try {
        listen_at(transport::listener(with_directory(path), S_IRUSR | S_IWUSR, std::nullopt));
        return;
      } catch (const error& why) {
        if (why.code() != errc::address_in_use) {
          throw;
        }
        if (base::time_left(deadline).count() == 0) {
          throw error(errc::address_in_use,
                      std::string(operation),
                      path,
                      "the program that listens there does not hand over",
                      "see its log; it must be a keeper of this user");
        }
      }
      base::pause_before_retry(retry_pause);  // another keeper starts at this moment
    }
  }

  void listen_at(transport::listener listener) {
    shared_->device = listener.file().device;
    shared_->inode = listener.file().inode;
    shared_->removes_files = listener.removes_files();
    auto [lock, socket] = std::move(listener).release();
    shared_->lock.take(lock.release());
    shared_->listener.take(socket.release());
  }

  void continue_with(taken_over predecessor) {
    if (predecessor.descriptors.size() > options_.max_descriptors) {
      throw error(errc::too_many_descriptors,
                  std::string(operation),
                  options_.takeover_path,
                  "the previous keeper has " + std::to_string(predecessor.descriptors.size()) +
                      " descriptors, more than the " + std::to_string(options_.max_descriptors) +
                      " that this one stores",
                  "raise --max-descriptors, and the open file limit");
    }
    for (named_descriptor& each : predecessor.descriptors) {
      if (!stored_.add(each.name, std::move(each.descriptor))) {
        throw error(errc::too_many_descriptors,
                    std::string(operation),
                    options_.takeover_path,
                    "the number of a descriptor is larger than " + std::to_string(largest_number),
                    "lower the open file limit of this keeper");
      }
    }
    listen_at(transport::listener(
        options_.takeover_path, std::move(predecessor.lock), std::move(predecessor.listener)));
    shared_->life.take(std::move(predecessor.life));
    shared_->predecessor.take(predecessor.predecessor.release());
    base::log(log_level::info, "taken over " + std::to_string(stored_.size()) + " descriptors");
  }

  keeper_options options_;
  const std::size_t open_file_limit_ = raised_open_file_limit();
  std::vector<int> foreign_;
  shared_memory<shared_state> shared_;
  stored_descriptors stored_;
};

keeper::keeper(keeper_options options) : impl_(std::make_unique<impl>(std::move(options))) {}
keeper::~keeper() = default;
int keeper::run() {
  return impl_->run();
}

}  // namespace gpushm::keeper
