// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/domain_set.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/files/file.hpp"
#include "base/process/deadline.hpp"
#include "base/process/retry.hpp"
#include "base/report/log.hpp"
#include "broker/hub/hub.hpp"
#include "domains/protocol/private_socket.hpp"
#include "domains/serve/receipt_key.hpp"
#include "domains/serve/run_directory.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr const char* kept_starts = "/process-starts";

/// Stops brokers, each on its own thread, so that one that hangs does not delay the others. Returns
/// false if some have not stopped within `timeout`; those are abandoned.
bool stop_all(std::vector<hosted_broker> brokers, std::chrono::milliseconds timeout) {
  struct progress {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t left = 0;
  };
  const auto shared = std::make_shared<progress>();
  shared->left = brokers.size();
  for (hosted_broker& each : brokers) {
    std::thread([shared,
                 ending =
                     std::unique_ptr<broker_detail::running_server>(each.release())]() mutable {
      ending.reset();
      const std::lock_guard lock(shared->mutex);
      --shared->left;
      shared->ended.notify_all();
    }).detach();
  }
  std::unique_lock lock(shared->mutex);
  return shared->ended.wait_for(lock, timeout, [&shared] { return shared->left == 0; });
}

bool stop_broker(hosted_broker broker, std::chrono::milliseconds timeout) {
  std::vector<hosted_broker> all;
  all.push_back(std::move(broker));
  return stop_all(std::move(all), timeout);
}

constexpr std::string_view ledger_prefix = "d.";
constexpr std::string_view ledger_suffix = ".segments";

}  // namespace

/// Exclusive use of a domain's entry, which it creates, with the mutex. During long work the mutex
/// is released with `unlock`.
class domain_set::exclusive_use {
 public:
  exclusive_use(domain_set& domains, base::busy_names::hold taken)
      : of_(domains),
        taken_(std::move(taken)),
        lock_(domains.mutex_),
        entry_(domains.open_[*taken_]) {}
  exclusive_use(const exclusive_use&) = delete;
  exclusive_use& operator=(const exclusive_use&) = delete;
  ~exclusive_use() {
    if (!lock_.owns_lock()) {
      lock_.lock();
    }
    if (is_closed()) {
      of_.open_.erase(*taken_);
    }
  }
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  /// Its content is guarded by the mutex.
  [[nodiscard]] served& entry() const noexcept { return entry_; }
  /// Whether the domain does not need an entry. With the mutex.
  [[nodiscard]] bool is_closed() const {
    return !entry_.serving && entry_.problem.empty() && !of_.is_configured(*taken_);
  }

 private:
  domain_set& of_;
  const base::busy_names::hold taken_;
  std::unique_lock<std::mutex> lock_;
  served& entry_;
};

base::busy_names::hold domain_set::take(const std::string& domain) {
  base::busy_names::hold taken = busy_.take(domain, base::deadline_after(options_.timeout));
  if (!taken) {
    throw error(errc::timed_out,
                "open domain",
                domain,
                "an earlier call is still opening or closing it",
                "try again later");
  }
  return taken;
}

domain_set::domain_set(domain_set_options options, std::optional<predecessor> before)
    : options_(std::move(options)),
      directory_(options_.run_dir + "/d"),
      locks_(options_.run_dir + "/locks"),
      locked_until_(base::deadline_after(base::dying_process_timeout)),
      budget_(std::make_shared<core::process_budget>(options_.limits.memory_bytes,
                                                     options_.descriptors)),
      has_keeper_(before.has_value()) {
  for (const std::string& domain : options_.domains) {
    check_name(domain);
  }
  create_directory(options_.run_dir, public_mode, true);
  create_directory(locks_, private_mode);
  lock_node();
  if (has_keeper_) {
    code_ = authenticator_of(locks_ + "/receipt.key");
  }
  read_kept_quotas();
  starts_ = read_start_counts(locks_ + kept_starts);
  create_directory(directory_, private_mode);
  remove_empty_directories();
  try {
    start_all(before);
  } catch (...) {
    if (!has_keeper_) {
      serve();  // they must before they can stop
    }
    throw;
  }
}

void domain_set::start_all(std::optional<predecessor>& before) {
  if (before) {
    continue_all(*before);
  }
  for (const std::string& domain : options_.domains) {
    check(domain);
  }
  if (has_keeper_) {
    for (const std::string& domain : domains_with_ledgers()) {
      open_again(domain);
    }
  }
  checker_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stopping_.wait_for(
        lock, stop, options_.check_interval, [&stop] { return stop.stop_requested(); })) {
      lock.unlock();
      check_all();
      lock.lock();
    }
  });
}

void domain_set::count_start(keeper::start_reason why) {
  const std::lock_guard lock(mutex_);
  add_start(starts_, locks_ + kept_starts, why);
}

void domain_set::serve() {
  if (!gate_->try_wait()) {
    gate_->count_down();
  }
}

domain_set::~domain_set() {
  if (!has_keeper_) {
    serve();
  }
  checker_.request_stop();
  checker_.join();
  if (has_keeper_) {
    return;
  }
  std::vector<hosted_broker> brokers;
  const auto deadline = base::deadline_after(options_.timeout);
  for (const std::string& domain : names()) {
    base::busy_names::hold taken = busy_.take(domain, deadline);
    if (!taken) {
      continue;  // abandoned
    }
    const exclusive_use one(*this, std::move(taken));
    if (one.entry().serving) {
      brokers.push_back(std::move(one.entry().serving));
    }
  }
  std::vector<std::string> sockets;
  sockets.reserve(brokers.size());
  for (const hosted_broker& each : brokers) {
    sockets.push_back(each->get().socket_path());
  }
  if (!stop_all(std::move(brokers), options_.timeout)) {
    base::log(log_level::error, "some brokers did not stop in time");
    // Only sockets of abandoned brokers still exist: brokers that stopped have removed theirs.
    for (const std::string& socket : sockets) {
      ::unlink(socket.c_str());
    }
  }
}

std::string domain_set::directory_of(const std::string& domain) const {
  return directory_ + "/" + domain;
}

// The prefix keeps domains' locks apart from the node's.
std::string domain_set::lock_path_of(const std::string& domain) const {
  return fmt::format("{}/d.{}.lock", locks_, domain);
}

std::string domain_set::ledger_path_of(const std::string& domain) const {
  return fmt::format("{}/{}{}{}", locks_, ledger_prefix, domain, ledger_suffix);
}

/// Domains that were open when the last process and its keeper died: closing one removes its
/// ledger.
std::vector<std::string> domain_set::domains_with_ledgers() const {
  std::vector<std::string> result;
  for (const std::string& name : names_in(locks_)) {
    if (name.size() > ledger_prefix.size() + ledger_suffix.size() &&
        name.starts_with(ledger_prefix) && name.ends_with(ledger_suffix)) {
      result.push_back(name.substr(ledger_prefix.size(),
                                   name.size() - ledger_prefix.size() - ledger_suffix.size()));
    }
  }
  return result;
}

/// Members wait for it, and have its directory mounted. One that cannot be served is retried.
void domain_set::open_again(const std::string& domain) {
  try {
    check_name(domain);
    open(domain);
  } catch (const std::exception& why) {
    const std::lock_guard lock(mutex_);
    note_problem(
        domain, open_[domain], fmt::format("domain {} is not served: {}", domain, why.what()));
  }
}

bool domain_set::is_configured(const std::string& domain) const {
  return std::find(options_.domains.begin(), options_.domains.end(), domain) !=
         options_.domains.end();
}

std::set<std::string> domain_set::names() const {
  std::set<std::string> result(options_.domains.begin(), options_.domains.end());
  const std::lock_guard lock(mutex_);
  for (const auto& [domain, each] : open_) {
    result.insert(domain);
  }
  return result;
}

/// A broker that has lost its keeper serves until there is another one, and nothing else ends it.
void domain_set::ask_to_yield() {
  constexpr std::chrono::milliseconds timeout{1'000};
  try {
    private_socket(options_.run_dir).yield(timeout);
    base::log(
        log_level::error,
        "the last broker had lost its keeper, and has ended: members hand back what they have");
  } catch (const error& why) {  // it is dying, or has a keeper
    base::log(log_level::info, why.what());
  }
  locked_until_ = base::deadline_after(base::dying_process_timeout);
}

void domain_set::lock_node() {
  const std::string path = locks_ + "/brokerd.lock";
  constexpr const char* operation = "lock the run directory";
  if (has_keeper_ && !base::try_lock_file(operation, path)) {
    ask_to_yield();
  }
  node_lock_ = base::retry_while_in_use(locked_until_, [&] {
    auto lock = base::try_lock_file(operation, path);
    if (!lock) {
      throw error(errc::address_in_use,
                  operation,
                  path,
                  "another process serves the domains of this directory",
                  "stop it, or choose another directory: --run-dir DIR");
    }
    return lock;
  });
}

/// Removes directories of domains that are no longer configured. Keeps directories that are not
/// empty.
void domain_set::remove_empty_directories() const {
  for (const std::string& name : names_in(directory_)) {
    if (!name.starts_with("claim-") && !is_configured(name)) {
      ::rmdir(directory_of(name).c_str());
    }
  }
}

std::string domain_set::open(const std::string& domain) {
  check_name(domain);
  exclusive_use one(*this, take(domain));
  if (!one.entry().serving) {
    one.unlock();
    hosted_broker fresh = start(domain);
    one.lock();
    one.entry().serving = std::move(fresh);
    post_quotas(domain, one.entry());
    note_problem(domain, one.entry(), {});
    base::log(log_level::info, "opened domain " + domain);
  }
  return directory_of(domain);
}

void domain_set::close(const std::string& domain) {
  check_name(domain);
  if (is_configured(domain)) {
    throw error(errc::invalid_argument,
                "close domain",
                domain,
                "it is a configured domain and always exists",
                "remove it from the options of gpushm-brokerd");
  }
  exclusive_use one(*this, take(domain));
  hosted_broker ending = std::move(one.entry().serving);
  one.entry().problem.clear();
  one.unlock();
  if (ending) {
    const broker_statistics last = ending->get().statistics();
    if (!stop_broker(std::move(ending), options_.timeout)) {
      base::log(log_level::error,
                fmt::format("the broker of domain {} did not stop in time", domain));
    }
    base::log(log_level::info,
              fmt::format("closed domain {} with {} segments and {} clients",
                          domain,
                          last.segments,
                          last.connections));
  }
  // Of a continued broker, or of one that was killed.
  ::unlink(lock_path_of(domain).c_str());
  ::unlink(ledger_path_of(domain).c_str());
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

void domain_set::note_problem(const std::string& domain,
                              served& served,
                              const std::string& problem) {
  if (served.problem == problem) {
    return;
  }
  base::log(problem.empty() ? log_level::info : log_level::error,
            problem.empty() ? fmt::format("domain {} is served again", domain) : problem);
  served.problem = problem;
}

void domain_set::check_all() {
  read_quota_file();
  for (const std::string& domain : names()) {
    check(domain);
  }
}

void domain_set::check(const std::string& domain) {
  base::busy_names::hold taken = busy_.take(domain, std::chrono::steady_clock::now());
  if (!taken) {
    return;  // is being opened or closed: checked next time
  }
  exclusive_use one(*this, std::move(taken));
  if (one.is_closed()) {
    return;  // meanwhile
  }
  served& entry = one.entry();
  if (entry.serving) {
    post_quotas(domain, entry);
    if (entry.serving->get().is_at_path()) {
      note_problem(domain, entry, {});
      return;
    }
    one.unlock();
    std::string problem = fmt::format(
        "the socket of domain {} was removed or replaced ({}): it is bound again, clients that are "
        "connected stay so",
        domain,
        entry.serving->get().socket_path());
    try {
      create_directory(directory_of(domain), public_mode);
      entry.serving->get().bind_again();
    } catch (const std::exception& why) {
      problem = fmt::format("domain {} accepts no new clients: {}", domain, why.what());
    }
    one.lock();
    note_problem(domain, entry, problem);
    return;
  }
  one.unlock();
  hosted_broker fresh;
  std::string problem;
  try {
    fresh = start(domain);
  } catch (const std::exception& why) {
    problem = fmt::format("domain {} is not served: {}", domain, why.what());
  }
  one.lock();
  entry.serving = std::move(fresh);
  post_quotas(domain, entry);
  note_problem(domain, entry, problem);
}

}  // namespace gpushm::domains
