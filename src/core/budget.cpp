// SPDX-License-Identifier: Apache-2.0
#include "core/budget.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/size_text.hpp"
#include "core/scheduling.hpp"

namespace gpushm::core {

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// 1/32 of each resource is reserved for the operator: enough for `gpushm ls` and `rm` when members
/// hold the rest.
constexpr std::uint64_t operator_part = 32;

struct kind {
  std::string_view name;
  std::uint64_t floor;         ///< granted to each principal while anything is left
  std::uint64_t max_reserved;  ///< upper bound of what is reserved for the operator
  bool is_bytes;
  errc error_if_full;
  std::string_view remedy;
};

constexpr std::array<kind, resource_count> kinds{{
    {"broker memory",
     1'048'576,
     unlimited,
     true,
     errc::out_of_memory,
     "use fewer segments, subscriptions and waiting opens, read answers, or raise the broker's "
     "memory limit"},
    {"descriptors",
     32,
     64,
     false,
     errc::too_many_descriptors,
     "use fewer, larger chunks, remove segments, or raise the broker's open file limit"},
    {"connections",
     16,
     64,
     false,
     errc::too_many_connections,
     "close clients that are not used, or serve with a larger --max-connections"},
    {"segments",
     16,
     0,
     false,
     errc::too_many_segments,
     "remove segments that are not used, or serve with a larger --max-segments"},
    {"segment memory",
     0,
     0,
     true,
     errc::quota_exceeded,
     "remove segments that are not used, or raise the broker's quota"},
    {"subscriptions", 64, 0, false, errc::too_many_requests, "subscribe once, to a shorter prefix"},
    {"waiting opens", 256, 0, false, errc::too_many_requests, "wait for fewer names at once"},
}};

const kind& kind_of(resource what) {
  return kinds[static_cast<std::size_t>(what)];
}

std::uint64_t times_share_factor(std::uint64_t value) {
  return value > unlimited / budget::share_factor ? unlimited : value * budget::share_factor;
}

std::uint64_t minus(std::uint64_t from, std::uint64_t what) {
  return from > what ? from - what : 0;
}

/// The rules of `budget`: true if one of `n` principals that share `total` may hold `demand` while
/// `left` remains free.
bool is_fair(std::uint64_t demand, std::uint64_t left, std::uint64_t total, std::uint64_t n) {
  const std::uint64_t equal = total / (budget::share_factor * n + 1) * budget::share_factor;
  return demand <= times_share_factor(left) && (demand <= equal || demand <= left);
}

std::string amount_text(const kind& of, std::uint64_t amount) {
  return of.is_bytes ? base::size_text(amount) : std::to_string(amount);
}

}  // namespace

// ---- process_budget ----

process_budget::process_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) noexcept
    : capacity_{memory_bytes, descriptors} {}

bool process_budget::take(resource what, std::uint64_t amount, std::uint64_t held) noexcept {
  const auto at = static_cast<std::size_t>(what);
  const std::uint64_t capacity = capacity_[at];
  std::uint64_t used = used_[at].load(std::memory_order_relaxed);
  do {
    if (capacity != 0) {
      const std::uint64_t open = minus(capacity, used);
      if (amount > open) {
        return false;
      }
      const std::uint64_t domains = domains_.load(std::memory_order_relaxed);
      if (domains > 1 && held + amount > kind_of(what).floor &&
          !is_fair(held + amount, open - amount, capacity, domains)) {
        return false;
      }
    }
  } while (!used_[at].compare_exchange_weak(used, used + amount, std::memory_order_relaxed));
  return true;
}

void process_budget::release(resource what, std::uint64_t amount) noexcept {
  used_[static_cast<std::size_t>(what)].fetch_sub(amount, std::memory_order_relaxed);
}

std::uint64_t process_budget::used(resource what) const noexcept {
  return used_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
}

std::uint64_t process_budget::capacity(resource what) const noexcept {
  return capacity_[static_cast<std::size_t>(what)];
}

error broker_out_of_memory() {
  return {
      errc::out_of_memory, {}, {}, "the broker is out of memory", "give the broker more memory"};
}

// ---- account ----

account::account(budget& of, principal who, std::shared_ptr<account> bucket)
    : of_(of), who_(std::move(who)), bucket_(std::move(bucket)) {}

account::~account() {
  of_.accounts_.erase(who_.key);
}

// ---- budget ----

budget::budget(const amounts& capacity,
               std::shared_ptr<process_budget> process,
               std::uint64_t memory_copies)
    : capacity_(capacity), memory_copies_(memory_copies), process_(std::move(process)) {
  if (process_) {
    process_->add_domain();
  }
}

budget::~budget() {
  if (process_) {
    process_->release(resource::memory_bytes, used(resource::memory_bytes));
    process_->release(resource::descriptors, used(resource::descriptors));
    process_->remove_domain();
  }
}

std::shared_ptr<account> budget::account_of(const principal& who) {
  if (const auto at = accounts_.find(who.key); at != accounts_.end()) {
    if (auto existing = at->second.lock()) {
      return existing;
    }
  }
  std::shared_ptr<account> bucket;
  if (!who.vouched_for) {
    bucket = account_of({std::string(unidentified_processes), true});
  }
  auto created = std::make_shared<account>(*this, who, std::move(bucket));
  accounts_[who.key] = created;
  return created;
}

budget::answer budget::may_take(const account& who,
                                resource what,
                                std::uint64_t amount,
                                bool is_operator) const noexcept {
  const std::uint64_t total = capacity(what);
  const std::uint64_t held = used(what);
  // Members only claim sizes: without a limit, too, the sum must not overflow.
  const std::uint64_t open = minus(total == 0 ? unlimited : total, held);
  if (amount > open) {
    return answer::whole;
  }
  if (total == 0 || is_operator) {
    return answer::yes;
  }
  const kind& of = kind_of(what);
  const std::uint64_t reserved = std::min(total / operator_part, of.max_reserved);
  if (amount > minus(open, reserved)) {
    return answer::whole;
  }
  std::uint64_t left = open - reserved - amount;
  const account& tenant = who.bucket_ ? *who.bucket_ : who;
  const std::uint64_t demand = tenant.used(what) + amount;
  // The operator sets the quota on GPU memory: one principal may use all of it if no other does.
  const bool is_alone = what == resource::segment_bytes && tenant.used(what) == held;
  const std::uint64_t users =
      users_[static_cast<std::size_t>(what)] + (tenant.used(what) == 0 ? 1 : 0);
  if (demand > of.floor && !is_alone && !is_fair(demand, left, total - reserved, users)) {
    return answer::share;
  }
  // Within a bucket, the only guarantee is that one process leaves something for the next.
  const bool greedy =
      who.bucket_ && who.used(what) + amount > of.floor && who.used(what) + amount > left;
  return greedy ? answer::share : answer::yes;
}

std::uint64_t budget::counted(resource what, std::uint64_t amount) const noexcept {
  if (what != resource::memory_bytes) {
    return amount;
  }
  return amount > unlimited / memory_copies_ ? unlimited : amount * memory_copies_;
}

void budget::add(account& who, resource what, std::uint64_t amount) noexcept {
  const auto at = static_cast<std::size_t>(what);
  account& tenant = who.bucket_ ? *who.bucket_ : who;
  users_[at] += tenant.used_[at] == 0 && amount != 0 ? 1U : 0U;
  used_[at] += amount;
  who.used_[at] += amount;
  if (who.bucket_) {
    tenant.used_[at] += amount;
  }
}

void budget::remove(account& who, resource what, std::uint64_t amount) noexcept {
  const auto at = static_cast<std::size_t>(what);
  account& tenant = who.bucket_ ? *who.bucket_ : who;
  used_[at] -= amount;
  who.used_[at] -= amount;
  if (who.bucket_) {
    tenant.used_[at] -= amount;
  }
  users_[at] -= tenant.used_[at] == 0 && amount != 0 ? 1U : 0U;
}

bool budget::try_take(account& who,
                      resource what,
                      std::uint64_t amount,
                      bool is_operator) noexcept {
  amount = counted(what, amount);
  if (may_take(who, what, amount, is_operator) != answer::yes ||
      (process_ && process_budget::is_limited(what) && !process_->take(what, amount, used(what)))) {
    return false;
  }
  add(who, what, amount);
  return true;
}

std::optional<error> budget::take(account& who,
                                  resource what,
                                  std::uint64_t amount,
                                  bool is_operator) {
  amount = counted(what, amount);
  if (const answer why = may_take(who, what, amount, is_operator); why != answer::yes) {
    return refusal(who, what, amount, why);
  }
  if (process_ && process_budget::is_limited(what) && !process_->take(what, amount, used(what))) {
    return refusal(who, what, amount, answer::process);
  }
  add(who, what, amount);
  return std::nullopt;
}

void budget::charge(account& who, resource what, std::uint64_t amount) noexcept {
  amount = counted(what, amount);
  if (process_ && process_budget::is_limited(what)) {
    process_->charge(what, amount);
  }
  add(who, what, amount);
}

void budget::release(account& who, resource what, std::uint64_t amount) noexcept {
  amount = counted(what, amount);
  remove(who, what, amount);
  if (process_ && process_budget::is_limited(what)) {
    process_->release(what, amount);
  }
}

bool budget::within_share(const account& who, resource what) const noexcept {
  return may_take(who, what, 0, false) == answer::yes;
}

error budget::refusal(const account& who, resource what, std::uint64_t amount, answer why) const {
  const kind& of = kind_of(what);
  const std::string wanted =
      "no room for " + amount_text(of, amount) + " more " + std::string(of.name);
  if (why == answer::process) {
    return {of.error_if_full,
            {},
            {},
            wanted + ": the brokers of this process hold " + amount_text(of, process_->used(what)) +
                " of " + amount_text(of, process_->capacity(what)) +
                ", and this domain its full share",
            of.remedy};
  }
  const std::uint64_t total = capacity(what) == 0 ? unlimited : capacity(what);
  if (why == answer::whole) {
    return {of.error_if_full,
            {},
            {},
            wanted + ": " + amount_text(of, used(what)) + " of " + amount_text(of, total) +
                " are in use",
            of.remedy};
  }
  return {errc::share_exceeded,
          {},
          {},
          wanted + ": " + who.name() + " holds " + amount_text(of, who.used(what)) +
              ", all members " + amount_text(of, used(what)) + " of " + amount_text(of, total) +
              ", and the rest is reserved for other members",
          of.remedy};
}

// ---- charges ----

void charges::take(resource what, std::uint64_t amount) {
  if (auto why = of_->take(*who_, what, amount, is_operator_)) {
    throw *std::move(why);
  }
  held_[static_cast<std::size_t>(what)] += amount;
}

bool charges::try_take(resource what, std::uint64_t amount) noexcept {
  if (!of_->try_take(*who_, what, amount, is_operator_)) {
    return false;
  }
  held_[static_cast<std::size_t>(what)] += amount;
  return true;
}

void charges::charge(resource what, std::uint64_t amount) noexcept {
  of_->charge(*who_, what, amount);
  held_[static_cast<std::size_t>(what)] += amount;
}

void charges::release(resource what, std::uint64_t amount) noexcept {
  of_->release(*who_, what, amount);
  held_[static_cast<std::size_t>(what)] -= amount;
}

void charges::reset() noexcept {
  if (of_ == nullptr) {
    return;
  }
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (const std::uint64_t amount = std::exchange(held_[i], 0); amount != 0) {
      of_->release(*who_, static_cast<resource>(i), amount);
    }
  }
  who_.reset();
}

}  // namespace gpushm::core
