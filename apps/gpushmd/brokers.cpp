// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/brokers.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <utility>

#include "base/log.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr mode_t public_mode = 0755;
constexpr mode_t private_mode = 0700;
constexpr const char* create_operation = "create directory";

std::atomic<bool>& abandoned() noexcept {
  static std::atomic<bool> any{false};
  return any;
}

[[noreturn]] void refuse_directory(const std::string& path, int number, std::string_view call) {
  throw error(base::errc_of_errno(number),
              create_operation,
              path,
              fmt::format("{}: {}", call, base::errno_text(number)),
              "run the agent as root, or choose another directory: --run-dir DIR");
}

/// Creates a directory, or changes an existing one of this user or root, to exactly this mode
/// regardless of the umask. Does not follow a symbolic link unless `may_be_link`: an administrator
/// then chose its target, which must still belong to this user or root.
void create_directory(const std::string& path, mode_t mode, bool may_be_link = false) {
  if (base::retry([&] { return ::mkdir(path.c_str(), mode); }) != 0 && errno != EEXIST) {
    refuse_directory(path, errno, "mkdir");
  }
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (may_be_link ? 0 : O_NOFOLLOW);
  const base::unique_fd directory(base::retry([&] { return ::open(path.c_str(), flags); }));
  struct stat about {};
  if (!directory || ::fstat(directory.get(), &about) != 0) {
    refuse_directory(path, errno, "open");
  }
  if (about.st_uid != ::geteuid() && about.st_uid != 0) {
    throw error(errc::permission_denied,
                create_operation,
                path,
                fmt::format("it exists and belongs to uid {}, which could replace its content",
                            about.st_uid),
                "remove it, or change its owner: chown root " + path);
  }
  if ((about.st_mode & 07777U) != mode) {
    base::checked(
        create_operation, path, "fchmod", [&] { return ::fchmod(directory.get(), mode); });
  }
}

void check_name(const std::string& domain) {
  if (domain.empty() || domain.front() == '.' || domain.find('/') != std::string::npos) {
    throw error(errc::invalid_argument,
                "open domain",
                domain,
                "not a valid domain name: it must be usable as a directory name");
  }
}

/// Stops brokers, each on its own thread, so that one that hangs does not delay the others. Returns
/// false if some have not stopped within `timeout`; those are abandoned.
bool stop_all(std::vector<broker> all, std::chrono::milliseconds timeout) {
  struct progress {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t left = 0;
  };
  const auto shared = std::make_shared<progress>();
  shared->left = all.size();
  for (broker& each : all) {
    std::thread([shared, ending = std::optional(std::move(each))]() mutable {
      ending.reset();
      const std::lock_guard lock(shared->mutex);
      --shared->left;
      shared->ended.notify_all();
    }).detach();
  }
  std::unique_lock lock(shared->mutex);
  const bool ended = shared->ended.wait_for(lock, timeout, [&shared] { return shared->left == 0; });
  if (!ended) {
    abandoned() = true;
  }
  return ended;
}

bool stop_broker(broker one, std::chrono::milliseconds timeout) {
  std::vector<broker> all;
  all.push_back(std::move(one));
  return stop_all(std::move(all), timeout);
}

}  // namespace

/// Marks one domain as busy for its lifetime. The mutex is held in the constructor and at the end
/// of the destructor.
class broker_set::busy_guard {
 public:
  /// Throws `error` (timed_out) if another call keeps the domain busy for too long.
  busy_guard(broker_set& of, std::unique_lock<std::mutex>& lock, std::string domain)
      : of_(of), lock_(lock), domain_(std::move(domain)) {
    const auto is_free = [&] {
      const auto found = of_.open_.find(domain_);
      return found == of_.open_.end() || !found->second.busy;
    };
    if (!of_.changed_.wait_for(lock_, of_.options_.timeout, is_free)) {
      throw error(errc::timed_out,
                  "open domain",
                  domain_,
                  "an earlier call is still opening or closing it",
                  "try again later");
    }
    of_.open_[domain_].busy = true;
  }
  busy_guard(const busy_guard&) = delete;
  busy_guard& operator=(const busy_guard&) = delete;
  ~busy_guard() {
    if (!lock_.owns_lock()) {
      lock_.lock();
    }
    served& entry = of_.open_[domain_];
    entry.busy = false;
    if (!entry.serving && entry.problem.empty() && !of_.is_configured(domain_)) {
      of_.open_.erase(domain_);
    }
    of_.changed_.notify_all();
  }
  [[nodiscard]] served& entry() { return of_.open_[domain_]; }

 private:
  broker_set& of_;
  std::unique_lock<std::mutex>& lock_;
  const std::string domain_;
};

broker_set::broker_set(broker_set_options options)
    : options_(std::move(options)),
      directory_(options_.run_dir + "/d"),
      locks_(options_.run_dir + "/locks"),
      budget_(std::make_shared<const broker_budget>(options_.limits.memory_bytes,
                                                    options_.descriptors)) {
  create_directory(options_.run_dir, public_mode, true);
  create_directory(locks_, private_mode);
  lock_node();
  create_directory(directory_, private_mode);
  remove_empty_directories();
  for (const std::string& domain : options_.domains) {
    check(domain);
  }
  checker_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(
        lock, stop, options_.check_interval, [&stop] { return stop.stop_requested(); })) {
      lock.unlock();
      check_all();
      lock.lock();
    }
  });
}

broker_set::~broker_set() {
  checker_.request_stop();
  checker_.join();
  std::vector<broker> all;
  {
    std::unique_lock lock(mutex_);
    // The DRA driver has stopped; a domain that is still busy after this is abandoned.
    changed_.wait_for(lock, options_.timeout, [this] {
      return std::none_of(
          open_.begin(), open_.end(), [](const auto& each) { return each.second.busy; });
    });
    for (auto& [domain, each] : open_) {
      if (each.serving && !each.busy) {
        all.push_back(*std::exchange(each.serving, std::nullopt));
      }
    }
  }
  std::vector<std::string> sockets;
  sockets.reserve(all.size());
  for (const broker& each : all) {
    sockets.push_back(each.socket_path());
  }
  if (!stop_all(std::move(all), options_.timeout)) {
    base::log(log_level::error, "some brokers did not stop in time");
    // Only sockets of abandoned brokers still exist: brokers that stopped have removed theirs.
    for (const std::string& socket : sockets) {
      ::unlink(socket.c_str());
    }
  }
}

bool broker_set::any_abandoned() noexcept {
  return abandoned();
}

std::string broker_set::directory_of(const std::string& domain) const {
  return directory_ + "/" + domain;
}

// The prefix keeps domains' locks apart from the node's.
std::string broker_set::lock_path_of(const std::string& domain) const {
  return fmt::format("{}/d.{}.lock", locks_, domain);
}

bool broker_set::is_configured(const std::string& domain) const {
  return std::find(options_.domains.begin(), options_.domains.end(), domain) !=
         options_.domains.end();
}

/// One agent per node: with two plugins of one resource, the kubelet marks the devices of both
/// unhealthy when either ends.
void broker_set::lock_node() {
  const std::string path = locks_ + "/agent.lock";
  constexpr const char* operation = "lock the node";
  node_lock_ = base::unique_fd(base::checked(operation, path, "open", [&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }));
  if (base::checked(operation,
                    path,
                    "flock",
                    [&] { return ::flock(node_lock_.get(), LOCK_EX | LOCK_NB); },
                    {EWOULDBLOCK}) == -1) {
    throw error(errc::address_in_use,
                operation,
                path,
                "another agent is running on this node",
                "stop it, or choose another directory: --run-dir DIR");
  }
}

/// Removes directories of domains that are no longer configured. Keeps directories that are not
/// empty.
void broker_set::remove_empty_directories() const {
  std::error_code failed;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(directory_, failed), end_; !failed && at != end_;
       at.increment(failed)) {
    names.push_back(at->path().filename().string());
  }
  for (const std::string& name : names) {
    if (!name.starts_with("claim-") && !is_configured(name)) {
      ::rmdir(directory_of(name).c_str());
    }
  }
}

void broker_set::start(const std::string& domain, served& into) const {
  create_directory(directory_of(domain), public_mode);
  broker_options options;
  options.socket_path = directory_of(domain) + "/socket";
  options.lock_path = lock_path_of(domain);
  options.domain = domain;
  options.mode = 0666;
  options.limits = options_.limits;
  options.shared = budget_;
  options.raise_descriptor_limit = true;
  options.accept_fake_chunks = options_.accept_fake_chunks;
  into.serving.emplace(broker::start(options));
  struct stat about {};
  base::checked(
      "open domain", domain, "stat", [&] { return ::lstat(options.socket_path.c_str(), &about); });
  into.device = about.st_dev;
  into.inode = about.st_ino;
}

std::string broker_set::open(const std::string& domain) {
  check_name(domain);
  std::unique_lock lock(mutex_);
  busy_guard one(*this, lock, domain);
  if (!one.entry().serving) {
    served& entry = one.entry();
    lock.unlock();
    served fresh;
    start(domain, fresh);
    lock.lock();
    entry.serving = std::move(fresh.serving);
    entry.device = fresh.device;
    entry.inode = fresh.inode;
    note_problem(domain, entry, {});
    base::log(log_level::info, "opened domain " + domain);
  }
  return directory_of(domain);
}

void broker_set::close(const std::string& domain) {
  check_name(domain);
  if (is_configured(domain)) {
    throw error(errc::invalid_argument,
                "close domain",
                domain,
                "it is a configured domain and always exists",
                "remove it from broker.domains");
  }
  std::unique_lock lock(mutex_);
  busy_guard one(*this, lock, domain);
  std::optional<broker> ending = std::exchange(one.entry().serving, std::nullopt);
  one.entry().problem.clear();
  lock.unlock();
  if (ending) {
    const broker_statistics last = ending->statistics();
    if (!stop_broker(std::move(*ending), options_.timeout)) {
      base::log(log_level::error,
                fmt::format("the broker of domain {} did not stop in time", domain));
    }
    base::log(log_level::info,
              fmt::format("closed domain {} with {} segments and {} clients",
                          domain,
                          last.segments,
                          last.connections));
  }
  ::unlink(lock_path_of(domain).c_str());  // left by an agent that was killed
  std::error_code failed;
  std::filesystem::remove_all(directory_of(domain), failed);
  if (failed) {
    throw error(
        errc::system_error,
        "close domain",
        domain,
        fmt::format(
            "its directory {} could not be removed: {}", directory_of(domain), failed.message()));
  }
}

std::vector<std::string> broker_set::list() const {
  std::set<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [domain, each] : open_) {
      names.insert(domain);
    }
  }
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory_, failed), end_; !failed && at != end_;
       at.increment(failed)) {
    names.insert(at->path().filename().string());
  }
  for (const std::string& domain : options_.domains) {
    names.erase(domain);
  }
  return {names.begin(), names.end()};
}

void broker_set::note_problem(const std::string& domain, served& of, const std::string& problem) {
  if (of.problem == problem) {
    return;
  }
  base::log(problem.empty() ? log_level::info : log_level::error,
            problem.empty() ? fmt::format("domain {} is served again", domain) : problem);
  of.problem = problem;
}

void broker_set::check_all() {
  std::set<std::string> names(options_.domains.begin(), options_.domains.end());
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [domain, each] : open_) {
      names.insert(domain);
    }
  }
  for (const std::string& domain : names) {
    check(domain);
  }
}

void broker_set::check(const std::string& domain) {
  std::unique_lock lock(mutex_);
  if (const auto found = open_.find(domain);
      found == open_.end() ? !is_configured(domain) : found->second.busy) {
    return;  // closed meanwhile, or being opened or closed: checked next time
  }
  busy_guard one(*this, lock, domain);
  served& entry = one.entry();
  if (entry.serving) {
    struct stat about {};
    if (::lstat(entry.serving->socket_path().c_str(), &about) == 0 &&
        about.st_dev == entry.device && about.st_ino == entry.inode) {
      return;
    }
    const broker_statistics now = entry.serving->statistics();
    if (now.connections > 0 || now.segments > 0) {
      note_problem(domain,
                   entry,
                   fmt::format("the socket of domain {} was removed or replaced ({}): new clients "
                               "cannot connect until all clients have disconnected and all "
                               "segments are removed, or the agent is restarted",
                               domain,
                               entry.serving->socket_path()));
      return;
    }
  }
  std::optional<broker> ending = std::exchange(entry.serving, std::nullopt);
  lock.unlock();
  served fresh;
  std::string problem;
  try {
    if (ending) {
      stop_broker(std::move(*ending), options_.timeout);
    }
    start(domain, fresh);
  } catch (const std::exception& why) {
    problem = fmt::format("domain {} is not served: {}", domain, why.what());
  }
  lock.lock();
  entry.serving = std::move(fresh.serving);
  entry.device = fresh.device;
  entry.inode = fresh.inode;
  note_problem(domain, entry, problem);
}

std::vector<metrics::domain_reading> broker_set::readings() const {
  const std::lock_guard lock(mutex_);
  std::vector<metrics::domain_reading> all;
  for (const auto& [domain, each] : open_) {
    metrics::domain_reading& one = all.emplace_back();
    one.domain = domain;
    if (each.serving) {
      one.counted = each.serving->statistics();
    }
    one.serving = each.serving.has_value() && each.problem.empty();
  }
  return all;
}

std::string broker_set::not_ready() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [domain, each] : open_) {
    if (!each.problem.empty()) {
      return each.problem;
    }
  }
  return {};
}

}  // namespace gpushm::agent
