// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/descriptor_shelf.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::succession {

namespace {

using std::chrono::milliseconds;

/// How long the keeper may take to read a notification, before that fails.
constexpr milliseconds put_timeout{2'000};
constexpr milliseconds barrier_timeout{5'000};
/// Before another attempt of something that the keeper did not do.
constexpr milliseconds retry_pause{100};
constexpr int base_of_numbers = 36;  // short names: systemd has little room for them
constexpr char descriptor_mark = '.';
constexpr char journal_mark = '+';

}  // namespace

/// Shared by the objects of a domain.
struct descriptor_shelf::contents {
  std::shared_mutex ending;  ///< shared: a descriptor is being stored
  bool ended = false;        ///< guarded by `ending`

  keeper_health health;

  // ---- after a `put` for which the keeper was too slow, the next ones do not wait as long again
  using clock = std::chrono::steady_clock;
  std::atomic<clock::rep> behind_until{0};
  void set_behind(bool is_behind) noexcept {
    behind_until =
        is_behind ? (clock::now() + put_timeout).time_since_epoch().count() : clock::rep{0};
  }
  [[nodiscard]] milliseconds patience() const noexcept {
    return clock::now().time_since_epoch().count() < behind_until ? milliseconds(1) : put_timeout;
  }

  std::mutex mutex;  ///< guards the rest
  records::descriptor_id next = 1;
  std::unordered_set<records::descriptor_id> stored;
};

descriptor_shelf::descriptor_shelf(keeper::descriptor_store store,
                                   std::string domain,
                                   std::span<const records::descriptor_id> stored)
    : store_(std::move(store)),
      domain_(std::move(domain)),
      contents_(std::make_shared<contents>()) {
  contents_->stored.insert(stored.begin(), stored.end());
  for (const records::descriptor_id each : stored) {
    contents_->next = std::max(contents_->next, each + 1);
  }
}

descriptor_shelf descriptor_shelf::another() const {
  auto store = keeper::descriptor_store::from_environment();
  if (!store) {
    throw error(errc::broker_unreachable,
                "store descriptors",
                {},
                "NOTIFY_SOCKET is not set any longer",
                "do not change the environment of a running broker");
  }
  return {std::move(*store), domain_, contents_};
}

std::string descriptor_shelf::name_of(char kind, std::uint64_t number) const {
  std::array<char, 16> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number, base_of_numbers).ptr;
  return domain_ + kind + std::string(digits.data(), end);
}

std::optional<descriptor_shelf::label> descriptor_shelf::parse(std::string_view name) {
  const auto mark = name.find_last_of(".+");
  if (mark == std::string_view::npos || mark == 0) {
    return std::nullopt;
  }
  label result{std::string(name.substr(0, mark)), name[mark] == journal_mark, 0};
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + mark + 1, end, result.number, base_of_numbers);
  return read.ec == std::errc() && read.ptr == end ? std::optional(std::move(result))
                                                   : std::nullopt;
}

records::descriptor_id descriptor_shelf::put(int descriptor) {
  return put_within(descriptor, contents_->patience());
}

std::optional<records::descriptor_id> descriptor_shelf::try_put(int descriptor) {
  try {
    return put_within(descriptor, milliseconds(0));
  } catch (const error& why) {
    if (why.code() != errc::timed_out) {
      throw;
    }
    return std::nullopt;
  }
}

records::descriptor_id descriptor_shelf::put_within(int descriptor, milliseconds timeout) {
  const std::shared_lock storing(contents_->ending);
  if (contents_->ended) {
    return 0;
  }
  records::descriptor_id number = 0;
  {
    const std::lock_guard lock(contents_->mutex);
    number = contents_->next++;
    contents_->stored.insert(number);
  }
  const auto is_not_stored = [&] {
    const std::lock_guard lock(contents_->mutex);
    contents_->stored.erase(number);
  };
  try {
    if (has_sent([&] {
          store_.put(name_of(descriptor_mark, number), std::span(&descriptor, 1), timeout);
        })) {
      contents_->set_behind(false);
      return number;
    }
  } catch (const error& why) {
    if (why.code() == errc::timed_out && timeout != milliseconds(0)) {
      contents_->set_behind(true);
    }
    is_not_stored();
    throw;
  }
  is_not_stored();
  return 0;
}

void descriptor_shelf::put_confirmed_journal(int descriptor, std::uint64_t sequence) {
  const std::string name = name_of(journal_mark, sequence);
  const auto deadline = base::deadline_after(put_timeout);
  try {
    std::optional<error> problem;
    static_cast<void>(has_sent([&] {
      store_.remove(name, base::time_left(deadline));  // of a call that has failed
      store_.put(name, std::span(&descriptor, 1), base::time_left(deadline));
      problem = store_.confirm(name, base::time_left(deadline));
    }));
    if (problem) {
      throw error(*problem);
    }
  } catch (const error&) {
    try {
      static_cast<void>(has_sent([&] { store_.remove(name, milliseconds(0)); }));
    } catch (const error& why) {
      log_about_members(log_level::debug, why.what());
    }
    throw;
  }
}

std::optional<base::unique_fd> descriptor_shelf::begin_put_journal(int descriptor,
                                                                   std::uint64_t sequence) {
  const std::string name = name_of(journal_mark, sequence);
  base::unique_fd reply;
  try {
    static_cast<void>(has_sent([&] {
      store_.remove(name, milliseconds(0));  // of a call that has failed
      store_.put(name, std::span(&descriptor, 1), milliseconds(0));
      reply = store_.begin_confirm(name);
    }));
  } catch (const error& why) {
    if (why.code() != errc::timed_out) {
      throw;
    }
    return std::nullopt;
  }
  return reply;
}

bool descriptor_shelf::remove_journal(std::uint64_t sequence) noexcept {
  try {
    return remove_named(name_of(journal_mark, sequence));
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Returns false if the keeper has ended. Its socket is then refused from then on; one of its two
/// processes would have kept it.
bool descriptor_shelf::has_sent(const std::function<void()>& send) {
  try {
    send();
    contents_->health.sent(true);
    return true;
  } catch (const error& why) {
    if (why.code() != errc::broker_unreachable) {
      if (why.code() == errc::timed_out) {
        contents_->health.sent(false);
      }
      throw;
    }
    if (contents_->health.has_gone()) {
      log_about_broker(
          log_level::error,
          std::string("the keeper has ended: the broker continues without one, and has no "
                      "successor (restart both when no process needs its segments): ") +
              why.what());
    }
    return false;
  }
}

bool descriptor_shelf::remove(records::descriptor_id number) noexcept {
  try {
    if (!remove_named(name_of(descriptor_mark, number))) {
      return false;
    }
    const std::lock_guard lock(contents_->mutex);
    contents_->stored.erase(number);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool descriptor_shelf::remove_named(const std::string& name) noexcept {
  try {
    static_cast<void>(has_sent([&] { store_.remove(name, milliseconds(0)); }));
    return true;
  } catch (const error& why) {
    if (why.code() != errc::timed_out) {
      log_about_members(log_level::warning, why.what());
    }
    return why.code() != errc::timed_out;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void descriptor_shelf::note_refusal() noexcept {
  if (contents_->health.now() != keeper_health::state::full) {
    log_about_members(
        log_level::error,
        "the keeper has not stored a descriptor: it is full, and what it has not is lost with "
        "this process (raise its open file limit and --max-descriptors)");
  }
  contents_->health.is_full();
}

std::shared_ptr<const keeper_health> descriptor_shelf::health() const noexcept {
  return {contents_, &contents_->health};
}

bool descriptor_shelf::is_stored(records::descriptor_id number) const {
  const std::lock_guard lock(contents_->mutex);
  return contents_->stored.count(number) != 0;
}

/// Until the keeper has processed everything. What it could not store was sent by any thread, and
/// is in the keeper's log.
void descriptor_shelf::wait() {
  if (!contents_->health.is_gone() && store_.flush(barrier_timeout)) {
    note_refusal();
  }
}

void descriptor_shelf::remove_and_wait(std::span<const records::descriptor_id> numbers) {
  for (const records::descriptor_id each : numbers) {
    while (each != 0 && is_stored(each) && !remove(each)) {
      wait();
    }
  }
  wait();
}

void descriptor_shelf::end(std::uint64_t journal_sequence) {
  // Also the one before and the next one, if it was replaced, or should have been, while the keeper
  // did not read.
  for (const std::uint64_t each : {journal_sequence - 1, journal_sequence + 1, journal_sequence}) {
    while (!remove_journal(each)) {
      wait();
    }
  }
  wait();  // from here on, nothing can be continued
  {
    const std::unique_lock all_stored(contents_->ending);
    contents_->ended = true;
  }
  std::vector<records::descriptor_id> left;
  {
    const std::lock_guard lock(contents_->mutex);
    left.assign(contents_->stored.begin(), contents_->stored.end());
  }
  remove_and_wait(left);
}

void retry_with_keeper(const std::function<void()>& attempt,
                       const std::function<bool()>& gives_up) noexcept {
  for (bool is_first = true;; is_first = false) {
    try {
      attempt();
      return;
    } catch (const std::exception& why) {
      if (is_first) {
        log_about_members(log_level::warning, why.what());
      }
      const auto* const known = dynamic_cast<const error*>(&why);
      if (known != nullptr && known->code() == errc::broker_unreachable) {
        return;
      }
    }
    if (gives_up()) {
      return;
    }
    base::pause_before_retry(retry_pause);
  }
}

}  // namespace gpushm::succession
