// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/domain_set.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <future>
#include <utility>

#include "base/deadline.hpp"
#include "base/file.hpp"
#include "base/log.hpp"
#include "base/quoted.hpp"
#include "base/retry.hpp"
#include "base/size_text.hpp"
#include "base/staged_file.hpp"
#include "base/syscall.hpp"
#include "base/text.hpp"
#include "broker/descriptor_shelf.hpp"
#include "broker/hub.hpp"
#include "domains/protocol/private_socket.hpp"
#include "domains/serve/receipt_key.hpp"
#include "domains/serve/segment_rows.hpp"
#include "domains/serve/statistics_of.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr mode_t public_mode = 0755;
constexpr mode_t private_mode = 0700;
constexpr const char* kept_quotas = "/quotas";
constexpr const char* kept_starts = "/process-starts";
/// Nodes of one answer, besides the domain: those that use the most.
constexpr std::size_t max_usage_nodes = 32;
constexpr const char* create_operation = "create directory";

[[noreturn]] void refuse_directory(const std::string& path, int number, std::string_view call) {
  throw error(base::errc_of_errno(number),
              create_operation,
              path,
              fmt::format("{}: {}", call, base::errno_text(number)),
              fmt::format("create it for this uid: install -d -o {} -m 0755 DIRECTORY; or choose "
                          "another one: --run-dir DIR",
                          ::geteuid()));
}

/// An existing directory, or a new one, which belongs to root or to `uid`.
struct opened_directory {
  base::unique_fd file;
  struct stat about {};

  opened_directory(const std::string& path, mode_t mode, uid_t uid, bool may_be_link) {
    if (base::retry([&] { return ::mkdir(path.c_str(), mode); }) != 0 && errno != EEXIST) {
      refuse_directory(path, errno, "mkdir");
    }
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (may_be_link ? 0 : O_NOFOLLOW);
    file = base::unique_fd(base::retry([&] { return ::open(path.c_str(), flags); }));
    if (!file || ::fstat(file.get(), &about) != 0) {
      refuse_directory(path, errno, "open");
    }
    if (about.st_uid != uid && about.st_uid != 0) {
      throw error(errc::permission_denied,
                  create_operation,
                  path,
                  fmt::format("it exists and belongs to uid {}, which could replace its content",
                              about.st_uid),
                  fmt::format("remove it, or change its owner: chown {} {}", uid, path));
    }
  }
  /// Regardless of the umask.
  void set_mode(const std::string& path, mode_t mode) const {
    if ((about.st_mode & 07777U) != mode) {
      base::checked(create_operation, path, "fchmod", [&] { return ::fchmod(file.get(), mode); });
    }
  }
};

}  // namespace

void create_directory(const std::string& path, mode_t mode, bool may_be_link) {
  opened_directory(path, mode, ::geteuid(), may_be_link).set_mode(path, mode);
}

void prepare_run_directory(const std::string& path, uid_t uid, gid_t gid) {
  const opened_directory directory(path, public_mode, uid, false);
  // Before it belongs to the other uid: root without capabilities may only change its own.
  directory.set_mode(path, public_mode);
  if (directory.about.st_uid != uid || directory.about.st_gid != gid) {
    base::checked(
        create_operation, path, "fchown", [&] { return ::fchown(directory.file.get(), uid, gid); });
  }
}

namespace {

void check_name(const std::string& domain) {
  if (domain.empty() || domain.front() == '.' || domain.find('/') != std::string::npos) {
    throw error(errc::invalid_argument,
                "open domain",
                domain,
                "not a valid domain name: it must be usable as a directory name",
                "choose a name without '/' that does not begin with '.'");
  }
}

/// Stops brokers, each on its own thread, so that one that hangs does not delay the others. Returns
/// false if some have not stopped within `timeout`; those are abandoned.
bool stop_all(std::vector<hosted_broker> all, std::chrono::milliseconds timeout) {
  struct progress {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t left = 0;
  };
  const auto shared = std::make_shared<progress>();
  shared->left = all.size();
  for (hosted_broker& each : all) {
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

bool stop_broker(hosted_broker one, std::chrono::milliseconds timeout) {
  std::vector<hosted_broker> all;
  all.push_back(std::move(one));
  return stop_all(std::move(all), timeout);
}

/// In a directory; none if it cannot be read.
std::vector<std::string> names_in(const std::string& directory) {
  std::error_code failed;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(directory, failed), end_; !failed && at != end_;
       at.increment(failed)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

constexpr std::string_view ledger_prefix = "d.";
constexpr std::string_view ledger_suffix = ".segments";

constexpr char short_name_mark = 'd';

keeper_state state_of(std::optional<broker_detail::keeper_health::state> keeper) {
  using state = broker_detail::keeper_health::state;
  switch (keeper.value_or(state::reads)) {
    case state::reads:
      return keeper ? keeper_state::reads : keeper_state::unknown;
    case state::slow:
      return keeper_state::slow;
    case state::full:
      return keeper_state::full;
    case state::gone:
      return keeper_state::gone;
  }
  return keeper_state::unknown;
}

/// What a predecessor has left.
struct continued_counts {
  std::uint64_t domains = 0;
  std::uint64_t segments = 0;
  std::uint64_t connections = 0;
  std::uint64_t journal_bytes = 0;

  continued_counts& operator+=(const continued_counts& more) noexcept {
    domains += more.domains;
    segments += more.segments;
    connections += more.connections;
    journal_bytes += more.journal_bytes;
    return *this;
  }
};

continued_counts counts_of(const broker_detail::inheritance& from) {
  continued_counts result;
  result.domains = 1;
  result.segments = static_cast<std::uint64_t>(
      std::count_if(from.state.records.begin(), from.state.records.end(), [](const auto& each) {
        return each.first.kind == core::record_kind::segment;
      }));
  result.connections = static_cast<std::uint64_t>(
      std::count_if(from.connections.begin(), from.connections.end(), [](const auto& each) {
        return !each.second.closed;
      }));
  result.journal_bytes = from.log.used_bytes();
  return result;
}

/// Of a domain in the keeper; nothing: it is not of this form.
std::optional<std::uint64_t> number_of(std::string_view short_name) {
  std::uint64_t number = 0;
  const char* const end = short_name.data() + short_name.size();
  if (!short_name.starts_with(short_name_mark)) {
    return std::nullopt;
  }
  const auto read = std::from_chars(short_name.data() + 1, end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace

/// Exclusive use of a domain's entry, which it creates, with the mutex. During long work the mutex
/// is released with `unlock`.
class domain_set::exclusive_use {
 public:
  exclusive_use(domain_set& of, base::busy_names::hold taken)
      : of_(of), taken_(std::move(taken)), lock_(of.mutex_), entry_(of.open_[*taken_]) {}
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
  std::vector<hosted_broker> all;
  const auto deadline = base::deadline_after(options_.timeout);
  for (const std::string& domain : names()) {
    base::busy_names::hold taken = busy_.take(domain, deadline);
    if (!taken) {
      continue;  // abandoned
    }
    const exclusive_use one(*this, std::move(taken));
    if (one.entry().serving) {
      all.push_back(std::move(one.entry().serving));
    }
  }
  std::vector<std::string> sockets;
  sockets.reserve(all.size());
  for (const hosted_broker& each : all) {
    sockets.push_back(each->get().socket_path());
  }
  if (!stop_all(std::move(all), options_.timeout)) {
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

hosted_broker domain_set::start(const std::string& domain) {
  // The locks of a predecessor's domains may be released later than the node's.
  if (!has_keeper_) {
    return base::retry_while_in_use(locked_until_, [&] { return start(domain, std::nullopt); });
  }
  const std::string short_name = short_name_mark + std::to_string(next_short_name_.fetch_add(1));
  const gpushm::generation first = next_first_generation();
  return base::retry_while_in_use(locked_until_, [&] {
    return start(
        domain,
        broker_detail::succession{
            short_name, std::nullopt, first, ledger_path_of(domain), code_, options_.return_time});
  });
}

/// A domain that has been lost with its keeper has the same name again; members still have its
/// segments, and references to them by name and generation. So each new start has a range of
/// generations of its own, counted in a file: at one start a second for two years, each of a domain
/// with a billion segments.
gpushm::generation domain_set::next_first_generation() {
  constexpr const char* operation = "count the starts of domains";
  constexpr unsigned bits_of_a_start = 30;
  constexpr std::uint64_t max_starts = max_generation >> bits_of_a_start;
  const std::string path = locks_ + "/starts";
  const std::lock_guard lock(starts_mutex_);
  const auto text = base::read_small_file(path);
  const auto starts = text ? base::number<std::uint64_t>(*text) : 0;
  if (!starts || *starts > max_starts) {
    throw error(errc::invalid_argument,
                operation,
                path,
                "it is not a number that this program has written",
                "restart this node; or remove the file once no process uses segments of this node");
  }
  base::staged_file file(operation, path);
  file.write(std::to_string(*starts + 1));
  file.commit();
  return (*starts << bits_of_a_start) + 1;
}

hosted_broker domain_set::start(const std::string& domain,
                                std::optional<broker_detail::succession> successors) {
  create_directory(directory_of(domain), public_mode);
  broker_options options;
  options.socket_path = directory_of(domain) + "/socket";
  options.lock_path = lock_path_of(domain);
  options.domain = domain;
  options.mode = 0666;
  options.limits = options_.limits;
  options.raise_descriptor_limit = true;
  options.accept_fake_chunks = options_.accept_fake_chunks;
  core::quotas quotas;
  {
    const std::lock_guard lock(mutex_);
    quotas = quotas_of(domain);
  }
  auto created = std::make_unique<broker_detail::running_server>(
      options,
      budget_,
      std::move(successors),
      [gate = gate_, quotas = std::move(quotas)](broker_detail::server& before_requests) {
        before_requests.post([quotas](broker_detail::hub& of) { of.set_quotas(quotas); });
        gate->wait();
      });
  return {created.release(), deleter_unless_continued{has_keeper_}};
}

void domain_set::continue_all(predecessor& before) {
  continued_counts all;
  for (const auto& [short_name, from] : before) {
    if (const auto number = number_of(short_name)) {
      next_short_name_ = std::max(next_short_name_.load(), *number + 1);
    }
  }
  for (auto& [short_name, from] : before) {
    const std::string domain = from.broker.domain;
    const auto numbers = from.stored;
    const std::uint64_t journal = from.log.sequence();
    const continued_counts counts = counts_of(from);
    try {
      check_name(domain);
      if (from.broker.socket_path != directory_of(domain) + "/socket" || open_.contains(domain)) {
        throw error(errc::invalid_argument,
                    "continue domain",
                    domain,
                    "it was served at " + from.broker.socket_path,
                    "start with the run directory of the last process");
      }
      hosted_broker serving = start(
          domain,
          broker_detail::succession{
              short_name, std::move(from), 1, ledger_path_of(domain), code_, options_.return_time});
      open_[domain].serving = std::move(serving);
      all += counts;
    } catch (const error& why) {
      // Only a state that is wrong. Anything else, such as a lack of memory, threads or
      // descriptors, ends this process with everything in the keeper: the next one tries again.
      if (why.code() != errc::invalid_argument) {
        throw;
      }
      base::log(
          log_level::error,
          fmt::format(
              "domain {} cannot be continued, its clients connect again: {}", domain, why.what()));
      if (auto store = keeper::descriptor_store::from_environment()) {
        broker_detail::descriptor_shelf(std::move(*store), short_name, numbers).end(journal);
      }
    }
  }
  if (all.domains != 0) {
    base::log(log_level::info,
              fmt::format("continues the last broker: domains {}, segments {}, connections {}, "
                          "journals {}",
                          all.domains,
                          all.segments,
                          all.connections,
                          base::size_text(all.journal_bytes)));
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

void domain_set::note_problem(const std::string& domain, served& of, const std::string& problem) {
  if (of.problem == problem) {
    return;
  }
  base::log(problem.empty() ? log_level::info : log_level::error,
            problem.empty() ? fmt::format("domain {} is served again", domain) : problem);
  of.problem = problem;
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

core::quotas domain_set::quotas_of(const std::string& domain) const {
  const std::uint64_t whole = options_.limits.quota_bytes;
  const std::uint64_t each = options_.limits.quota_bytes_per_principal;
  return rules_.of(domain, {.domain = {whole, whole}, .principal = {each, each}});
}

void domain_set::post_quotas(const std::string& domain, served& to) noexcept {
  if (!to.serving || to.has_quotas == quotas_number_) {
    return;
  }
  try {
    to.serving->get().post(
        [quotas = quotas_of(domain)](broker_detail::hub& of) { of.set_quotas(quotas); });
    to.has_quotas = quotas_number_;
  } catch (const std::exception& why) {  // `check` tries again
    base::log(log_level::warning, why.what());
  }
}

/// The last ones that were set: a file that is wrong now must not end them.
void domain_set::read_kept_quotas() {
  const std::string path = locks_ + kept_quotas;
  try {
    if (const auto text = base::read_small_file(path)) {
      rules_ = quota_rules(*text, path);
      quota_text_ = *text;
    }
  } catch (const error& why) {
    base::log(log_level::error, why.what());
  }
  read_quota_file();
}

void domain_set::read_quota_file() {
  if (options_.quota_file.empty()) {
    return;
  }
  const auto text = base::read_small_file(options_.quota_file);
  if (!text) {
    if (!std::exchange(quota_file_is_missing_, true)) {
      base::log(log_level::error,
                fmt::format("{} cannot be read: the quotas that it had before apply",
                            options_.quota_file));
    }
    return;
  }
  quota_file_is_missing_ = false;
  if (std::exchange(quota_file_text_, *text) == *text) {
    return;
  }
  try {
    replace_quotas(*text, options_.quota_file);
    base::log(log_level::info, "read the quotas in " + options_.quota_file);
  } catch (const error& why) {
    if (why.code() != errc::invalid_argument) {
      quota_file_text_.clear();  // tried again
    }
    base::log(log_level::error, fmt::format("{}; the quotas before apply", why.what()));
  }
}

void domain_set::set_quotas(const std::string& text) {
  if (!options_.quota_file.empty()) {
    throw error(errc::invalid_argument,
                "set quotas",
                {},
                "the quotas are those in " + options_.quota_file,
                "change that file, which is read again, or start gpushm-brokerd without --quotas");
  }
  replace_quotas(text, "the given text");
}

void domain_set::replace_quotas(const std::string& text, const std::string& source) {
  const std::lock_guard one_at_a_time(quotas_mutex_);
  quota_rules rules(text, source);
  base::staged_file file("keep quotas", locks_ + kept_quotas);
  file.write(text);
  file.commit();
  const std::lock_guard lock(mutex_);
  rules_ = std::move(rules);
  quota_text_ = text;
  ++quotas_number_;
  for (auto& [domain, each] : open_) {
    post_quotas(domain, each);
  }
}

void domain_set::lose_device(const std::string& uuid, const std::string& pci_address) {
  constexpr const char* operation = "report a lost GPU";
  if (uuid.empty()) {
    throw error(errc::invalid_argument,
                operation,
                uuid,
                "it has no UUID",
                "name it as `gpushm topo` and `nvidia-smi -L` do");
  }
  base::log(log_level::warning,
            fmt::format("{} was reported lost: its segments are gone", base::in_quotes(uuid)));
  std::vector<std::pair<std::string, std::future<void>>> all;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [domain, each] : open_) {
      if (!each.serving) {
        continue;  // it has no segments
      }
      const auto promised = std::make_shared<std::promise<void>>();
      all.emplace_back(domain, promised->get_future());
      each.serving->get().post([promised, uuid, pci_address](broker_detail::hub& of) {
        try {
          of.lose_device({uuid, pci_address}, [promised] { promised->set_value(); });
        } catch (...) {
          promised->set_exception(std::current_exception());
        }
      });
    }
  }
  const auto deadline = base::deadline_after(options_.timeout);
  for (auto& [domain, got] : all) {
    if (got.wait_until(deadline) != std::future_status::ready) {
      throw error(errc::timed_out,
                  operation,
                  uuid,
                  "the broker of domain " + domain + " is busy",
                  "repeat it; a broker that hangs is replaced by its keeper");
    }
    try {
      got.get();
    } catch (const std::future_error&) {
      throw error(
          errc::broker_unreachable, operation, uuid, "domain " + domain + " ends", "repeat it");
    }
  }
}

template <typename Work>
auto domain_set::ask(const char* operation,
                     const std::string& domain,
                     std::chrono::steady_clock::time_point deadline,
                     Work work) const {
  using result = decltype(work(std::declval<broker_detail::hub&>()));
  const auto promised = std::make_shared<std::promise<result>>();
  auto got = promised->get_future();
  {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(domain);
    if (at == open_.end() || !at->second.serving) {
      throw error(errc::invalid_argument,
                  operation,
                  domain,
                  "no such domain is served",
                  "see the log of gpushm-brokerd; `ls DIR/d` lists the domains");
    }
    at->second.serving->get().post([promised, work = std::move(work)](broker_detail::hub& of) {
      try {
        promised->set_value(work(of));
      } catch (...) {
        promised->set_exception(std::current_exception());
      }
    });
  }
  if (got.wait_until(deadline) != std::future_status::ready) {
    throw error(errc::timed_out,
                operation,
                domain,
                "its broker is busy",
                "try again; a broker that hangs is replaced by its keeper");
  }
  try {
    return got.get();
  } catch (const std::future_error&) {
    throw error(errc::broker_unreachable, operation, domain, "its broker ends", "try again");
  }
}

std::vector<usage> domain_set::process_budgets() const {
  std::vector<usage> result;
  for (const core::resource what : {core::resource::memory_bytes, core::resource::descriptors}) {
    result.push_back({"process",
                      "gpushm-brokerd",
                      std::string(core::to_string(what)),
                      {},
                      budget_->used(what),
                      budget_->capacity(what)});
  }
  return result;
}

usages domain_set::read_usage(const std::string& domain) const {
  struct of_domain {
    std::vector<core::node_usage> nodes;
    std::uint64_t freeing_bytes = 0;
  };
  const auto deadline = base::deadline_after(options_.timeout);
  const of_domain got = ask("read usage", domain, deadline, [](broker_detail::hub& of) {
    return of_domain{of.domain().budget().usages(max_usage_nodes), of.freeing_bytes()};
  });
  usages result;
  {
    const std::lock_guard lock(mutex_);
    result.quotas = quota_text_;
  }
  for (const usage& each : process_budgets()) {
    if (each.limit != 0) {
      result.all.push_back(each);
    }
  }
  if (got.freeing_bytes != 0) {
    result.all.push_back({"domain", domain, "freeing_bytes", {}, got.freeing_bytes, 0});
  }
  for (const core::node_usage& each : got.nodes) {
    if (result.all.size() == max_usages) {
      break;
    }
    result.all.push_back({std::string(core::to_string(each.kind)),
                          each.kind == core::level::domain ? domain : each.name,
                          std::string(core::to_string(each.what)),
                          each.gpu,
                          each.used,
                          each.limit});
  }
  return result;
}

void domain_set::count_start(keeper::start_reason why) {
  const std::lock_guard lock(mutex_);
  add_start(starts_, locks_ + kept_starts, why);
}

segment_page domain_set::list_segments(const std::string& domain, std::uint32_t slot) const {
  return ask("list segments",
             domain,
             base::deadline_after(options_.timeout),
             [slot](broker_detail::hub& of) { return page_of_segments(of.domain(), slot); });
}

bool domain_set::remove_unheld(const std::string& domain, gpushm::generation generation) const {
  struct removal {
    std::string name;
    std::uint64_t bytes = 0;
    bool is_done = false;
  };
  const removal one = ask("remove",
                          domain,
                          base::deadline_after(options_.timeout),
                          [generation](broker_detail::hub& of) {
                            removal result;
                            if (const auto* const found = of.domain().find_segment(generation)) {
                              result.name = found->name;
                              result.bytes = found->allocated_bytes;
                            }
                            result.is_done = of.remove_unheld(generation);
                            return result;
                          });
  if (one.is_done) {
    base::log(log_level::info,
              fmt::format("domain {}: removed {} ({}) for an operator: no process had it open",
                          domain,
                          base::in_quotes(one.name),
                          base::size_text(one.bytes)));
  }
  return one.is_done;
}

broker_facts domain_set::read_broker() const {
  broker_facts result;
  result.version = options_.version;
  result.started_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(started_.time_since_epoch()).count());
  {
    const std::lock_guard lock(mutex_);
    result.starts = starts_.starts;
    result.takeovers = starts_.takeovers;
    result.failed_takeovers = starts_.failed_takeovers;
  }
  result.budgets = process_budgets();
  result.process = usage_of_this_process();
  return result;
}

domain_statistics domain_set::read_statistics(const std::string& domain) const {
  struct look {
    core::segment_survey survey;
    bool more = true;
  };
  constexpr const char* operation = "read statistics";
  const auto deadline = base::deadline_after(options_.timeout);
  const auto shared = std::make_shared<look>();  // with a turn that may come too late
  // In the first turn, so that all numbers of a domain with few segments are of one moment.
  domain_statistics result = ask(operation, domain, deadline, [shared](broker_detail::hub& of) {
    domain_statistics first =
        statistics_of(of.domain(), of.waits_to_close(), of.counted_requests(), of.reports());
    shared->more = of.domain().survey_some(shared->survey);
    return first;
  });
  while (shared->more) {
    ask(operation, domain, deadline, [shared](broker_detail::hub& of) {
      shared->more = of.domain().survey_some(shared->survey);
      return true;
    });
  }
  add_survey(result, shared->survey);
  return result;
}

std::vector<domain_set::round> domain_set::start_rounds() const {
  std::vector<round> result;
  const std::lock_guard lock(mutex_);
  for (const auto& [domain, each] : open_) {
    if (each.serving) {
      auto token = std::make_shared<const bool>(true);
      result.push_back({domain, token});
      each.serving->get().pass(std::move(token));
    }
  }
  return result;
}

std::vector<reading> domain_set::read() const {
  std::map<std::string, reading> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [domain, each] : open_) {
      reading& one = all[domain];
      one.open = true;
      if (each.serving) {
        one.counted = each.serving->get().statistics();
        const broker_detail::return_counts returns = each.serving->get().returns();
        one.handed_back = returns.handed_back;
        one.lost = returns.lost;
        one.freeing_bytes = each.serving->get().freeing_bytes();
        one.keeper = state_of(each.serving->get().keeper());
        one.serving = each.problem.empty();
      }
      one.problem = each.problem;
    }
  }
  for (const std::string& name : names_in(directory_)) {
    all.try_emplace(name);
  }
  std::vector<reading> result;
  result.reserve(all.size());
  for (auto& [domain, each] : all) {
    each.domain = domain;
    result.push_back(std::move(each));
  }
  return result;
}

}  // namespace gpushm::domains
