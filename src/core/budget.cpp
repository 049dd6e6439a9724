// SPDX-License-Identifier: Apache-2.0
#include "core/budget.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text/size_text.hpp"
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
     "use fewer segments, subscriptions and waiting opens, read replies, or raise the broker's "
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
    {"segment memory",
     0,
     0,
     true,
     errc::quota_exceeded,
     "remove segments that are not used, or raise the broker's quota"},
}};

const kind& kind_of(resource resource) {
  return kinds[static_cast<std::size_t>(resource)];
}

std::uint64_t times_share_factor(std::uint64_t value) {
  return value > unlimited / budget::share_factor ? unlimited : value * budget::share_factor;
}

std::uint64_t minus(std::uint64_t total, std::uint64_t amount) {
  return total > amount ? total - amount : 0;
}

constexpr bool is_quota(resource resource) {
  return resource == resource::host_bytes || resource == resource::gpu_bytes;
}

/// From this number on the equal part of each is 0: each only leaves something for the next one.
constexpr std::uint64_t any_number = std::uint64_t{1} << 48U;

/// What a node has of a resource, and one of those that share it.
struct terms {
  std::uint64_t capacity = 0;  ///< 0: no limit
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;  ///< for the operator
  std::uint64_t users = 0;     ///< with the one that requests more
  std::uint64_t held = 0;      ///< by that one
  bool is_shared = false;
};

enum class permission : std::uint8_t { yes, whole, share };

/// The rule of each node (see `budget`).
permission may_hold(const kind& kind, const terms& terms, std::uint64_t amount, bool is_operator) {
  // Members only claim sizes: the sum must not overflow even without a limit.
  const std::uint64_t open = minus(terms.capacity == 0 ? unlimited : terms.capacity, terms.used);
  if (amount > open) {
    return permission::whole;
  }
  if (terms.capacity == 0 || is_operator) {
    return permission::yes;
  }
  if (amount > minus(open, terms.reserved)) {
    return permission::whole;
  }
  const std::uint64_t left = minus(open, terms.reserved) - amount;
  const std::uint64_t demand = terms.held + amount;
  if (!terms.is_shared || demand <= kind.floor) {
    return permission::yes;
  }
  const std::uint64_t total = terms.capacity - terms.reserved;
  const std::uint64_t equal =
      total / (budget::share_factor * terms.users + 1) * budget::share_factor;
  return demand <= times_share_factor(left) && (demand <= equal || demand <= left)
             ? permission::yes
             : permission::share;
}

std::string amount_text(const kind& kind, std::uint64_t amount) {
  return kind.is_bytes ? base::size_text(amount) : std::to_string(amount);
}

}  // namespace

std::string_view to_string(resource resource) noexcept {
  constexpr std::array<std::string_view, resource_count> names{"memory_bytes",
                                                               "descriptors",
                                                               "connections",
                                                               "segments",
                                                               "host_bytes",
                                                               "subscriptions",
                                                               "waiting_opens",
                                                               "gpu_bytes"};
  return names[static_cast<std::size_t>(resource)];
}

std::string_view to_string(level level) noexcept {
  constexpr std::array<std::string_view, 3> names{"domain", "uid", "principal"};
  return names[static_cast<std::size_t>(level)];
}

// ---- process_budget ----

process_budget::process_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) noexcept
    : capacity_{memory_bytes, descriptors} {}

bool process_budget::take(resource resource, std::uint64_t amount, std::uint64_t held) noexcept {
  const auto at = static_cast<std::size_t>(resource);
  std::uint64_t used = used_[at].load(std::memory_order_relaxed);
  do {
    const std::uint64_t domains = domains_.load(std::memory_order_relaxed);
    const terms whole{.capacity = capacity_[at],
                      .used = used,
                      .users = domains,
                      .held = held,
                      .is_shared = domains > 1};
    if (may_hold(kind_of(resource), whole, amount, false) != permission::yes) {
      return false;
    }
  } while (!used_[at].compare_exchange_weak(used, used + amount, std::memory_order_relaxed));
  return true;
}

std::uint64_t process_budget::share_of(resource resource, std::uint64_t held) const noexcept {
  const std::uint64_t total = capacity(resource);
  const std::uint64_t domains = domains_.load(std::memory_order_relaxed);
  if (total == 0 || domains < 2) {
    return total;
  }
  // The rule of `may_hold`, for the amount with which it is just met.
  const std::uint64_t open = minus(total, minus(used(resource), held));
  const std::uint64_t equal = total / (budget::share_factor * domains + 1) * budget::share_factor;
  const std::uint64_t fair =
      std::min(open / (budget::share_factor + 1) * budget::share_factor, std::max(equal, open / 2));
  return std::max<std::uint64_t>(std::max(fair, std::min(kind_of(resource).floor, open)), 1);
}

void process_budget::release(resource resource, std::uint64_t amount) noexcept {
  used_[static_cast<std::size_t>(resource)].fetch_sub(amount, std::memory_order_relaxed);
}

std::uint64_t process_budget::used(resource resource) const noexcept {
  return used_[static_cast<std::size_t>(resource)].load(std::memory_order_relaxed);
}

std::uint64_t process_budget::capacity(resource resource) const noexcept {
  return capacity_[static_cast<std::size_t>(resource)];
}

error broker_out_of_memory() {
  return {
      errc::out_of_memory, {}, {}, "the broker is out of memory", "give the broker more memory"};
}

// ---- node and account ----

node::~node() {
  of_.nodes_.erase(key_);
}

node::use node::use_of(const item& item) const noexcept {
  if (item.what != resource::gpu_bytes) {
    return total_[static_cast<std::size_t>(item.what)];
  }
  return item.gpu < gpus_.size() ? gpus_[item.gpu] : use{};
}

node::use& node::use_of(const item& item) noexcept {
  if (item.what == resource::gpu_bytes) {
    return gpus_[item.gpu];
  }
  return total_[static_cast<std::size_t>(item.what)];
}

void node::make_room(std::uint32_t gpu) {
  if (gpus_.size() <= gpu) {
    gpus_.resize(std::size_t{gpu} + 1);
  }
}

void node::add(const item& item, std::uint64_t amount) noexcept {
  use& own = use_of(item);
  if (parent_ && own.used == 0 && amount != 0) {
    ++parent_->use_of(item).users;
  }
  own.used += amount;
  if (item.what == resource::gpu_bytes) {
    total_[static_cast<std::size_t>(item.what)].used += amount;
  }
}

void node::remove(const item& item, std::uint64_t amount) noexcept {
  use& own = use_of(item);
  own.used -= amount;
  if (parent_ && own.used == 0 && amount != 0) {
    --parent_->use_of(item).users;
  }
  if (item.what == resource::gpu_bytes) {
    total_[static_cast<std::size_t>(item.what)].used -= amount;
  }
}

account::~account() {
  of_.accounts_.erase(key_);
}

// ---- budget ----

budget::budget(const amounts& capacity,
               std::shared_ptr<process_budget> process,
               std::uint64_t memory_copies)
    : memory_copies_(memory_copies),
      process_(std::move(process)),
      whole_(std::make_shared<node>(*this, level::domain, "this domain", nullptr)) {
  whole_->capacity_ = capacity;
  quotas_.domain = {whole_->capacity(resource::host_bytes), whole_->capacity(resource::gpu_bytes)};
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

std::shared_ptr<node> budget::node_of(level kind,
                                      const std::string& name,
                                      const std::shared_ptr<node>& parent,
                                      std::optional<std::uint32_t> uid) {
  if (const auto at = nodes_.find({kind, name}); at != nodes_.end()) {
    if (auto existing = at->second.lock()) {
      return existing;
    }
  }
  auto created = std::make_shared<node>(*this, kind, name, parent, uid);
  set_capacity(*created);
  nodes_[{kind, name}] = created;
  return created;
}

std::shared_ptr<account> budget::account_of(const principal& principal,
                                            std::optional<std::uint32_t> uid) {
  const std::string key = uid ? principal.key + "\nuid " + std::to_string(*uid) : principal.key;
  if (const auto at = accounts_.find(key); at != accounts_.end()) {
    if (auto existing = at->second.lock()) {
      return existing;
    }
  }
  const auto parent = principal.vouched_for
                          ? whole_
                          : node_of(level::principal, std::string(unidentified_processes), whole_);
  auto created = std::make_shared<account>(
      *this,
      key,
      node_of(level::principal, principal.key, parent),
      uid ? node_of(level::uid, "uid " + std::to_string(*uid), nullptr, uid) : nullptr);
  accounts_[key] = created;
  return created;
}

std::uint32_t budget::number_of_gpu(account& account, std::string_view uuid, bool exists) {
  const auto used_of = [&](std::size_t number) {
    return whole_->used(item(resource::gpu_bytes, static_cast<std::uint32_t>(number)));
  };
  auto number =
      static_cast<std::size_t>(std::find(gpus_.begin(), gpus_.end(), uuid) - gpus_.begin());
  if (number == gpus_.size()) {
    number = 0;
    while (number != gpus_.size() && used_of(number) != 0) {
      ++number;
    }
    if (number >= max_gpus && number == gpus_.size() && !exists) {
      throw error(errc::quota_exceeded,
                  {},
                  {},
                  "this domain has segments on " + std::to_string(max_gpus) + " GPUs, the limit",
                  "remove segments that are not used");
    }
    if (number == gpus_.size()) {
      gpus_.emplace_back();
    }
    gpus_[number] = uuid;
  }
  const auto result = static_cast<std::uint32_t>(number);
  for (node* at = account.principal_.get(); at != nullptr; at = at->parent_.get()) {
    at->make_room(result);
  }
  if (account.uid_) {
    account.uid_->make_room(result);
  }
  return result;
}

std::uint64_t budget::used_on(std::string_view uuid) const noexcept {
  const auto at = std::find(gpus_.begin(), gpus_.end(), uuid);
  return at == gpus_.end() ? 0
                           : whole_->used(item(resource::gpu_bytes,
                                               static_cast<std::uint32_t>(at - gpus_.begin())));
}

void budget::set_capacity(node& node) const noexcept {
  quota value = node.kind() == level::domain ? quotas_.domain : quotas_.principal;
  if (node.kind() == level::uid) {
    const auto at = quotas_.uids.find(node.uid_.value_or(0));
    value = at == quotas_.uids.end() ? quota{} : at->second;
  }
  node.capacity_[static_cast<std::size_t>(resource::host_bytes)] = value.host_bytes;
  node.capacity_[static_cast<std::size_t>(resource::gpu_bytes)] = value.gpu_bytes;
}

void budget::set_quotas(quotas values) {
  quotas_ = std::move(values);
  set_capacity(*whole_);
  for (const auto& [key, each] : nodes_) {
    if (const auto at = each.lock()) {
      set_capacity(*at);
    }
  }
}

void budget::add_usages(std::vector<node_usage>& usages, const node& node) const {
  const auto add = [&](const item& item, std::string gpu) {
    node_usage one{node.kind(),
                   node.name(),
                   item.what,
                   std::move(gpu),
                   node.used(item),
                   node.capacity(item.what)};
    if (one.used != 0 || (one.limit != 0 && item.what != resource::gpu_bytes)) {
      usages.push_back(std::move(one));
    }
  };
  for (std::size_t i = 0; i < resource_count; ++i) {
    const auto what = static_cast<resource>(i);
    if (what != resource::gpu_bytes) {
      add(what, {});
    }
  }
  for (std::size_t number = 0; number < gpus_.size(); ++number) {
    add({resource::gpu_bytes, static_cast<std::uint32_t>(number)}, gpus_[number]);
  }
}

std::vector<node_usage> budget::usages(std::size_t max_nodes) const {
  std::vector<std::shared_ptr<node>> nodes;
  nodes.reserve(nodes_.size());
  for (const auto& [key, each] : nodes_) {
    if (auto at = each.lock()) {
      nodes.push_back(std::move(at));
    }
  }
  const auto size_of = [](const node& node) {
    return std::pair(node.used(resource::host_bytes) + node.used(resource::gpu_bytes),
                     node.used(resource::memory_bytes));
  };
  std::stable_sort(nodes.begin(), nodes.end(), [&](const auto& left, const auto& right) {
    return size_of(*left) > size_of(*right);
  });
  nodes.resize(std::min(nodes.size(), max_nodes));
  std::vector<node_usage> result;
  add_usages(result, *whole_);
  for (const auto& each : nodes) {
    add_usages(result, *each);
  }
  return result;
}

std::vector<node_usage> budget::own_usages() const {
  std::vector<node_usage> result;
  for (std::size_t i = 0; i < resource_count; ++i) {
    const auto what = static_cast<resource>(i);
    if (what != resource::gpu_bytes) {
      result.push_back(
          {level::domain, whole_->name(), what, {}, whole_->used(what), whole_->capacity(what)});
    }
  }
  for (std::size_t number = 0; number < gpus_.size(); ++number) {
    const std::uint64_t used =
        whole_->used(item(resource::gpu_bytes, static_cast<std::uint32_t>(number)));
    if (used != 0) {
      result.push_back({level::domain,
                        whole_->name(),
                        resource::gpu_bytes,
                        gpus_[number],
                        used,
                        whole_->capacity(resource::gpu_bytes)});
    }
  }
  return result;
}

principal_usages budget::usages_of_principals(std::size_t max_rows) const {
  std::vector<std::shared_ptr<const node>> nodes;
  for (const auto& [key, each] : nodes_) {
    if (key.first != level::principal) {
      continue;
    }
    // Those below another one are counted in that.
    if (auto at = each.lock(); at && at->parent_ == whole_) {
      nodes.push_back(std::move(at));
    }
  }
  const auto size_of = [](const node& node) {
    return std::pair(node.used(resource::host_bytes) + node.used(resource::gpu_bytes),
                     node.used(resource::memory_bytes));
  };
  std::stable_sort(nodes.begin(), nodes.end(), [&](const auto& left, const auto& right) {
    return size_of(*left) > size_of(*right);
  });
  principal_usages result;
  for (const auto& each : nodes) {
    const bool is_row = result.largest.size() < max_rows;
    node::amounts& to = is_row
                            ? result.largest.emplace_back(principal_usages::row{each->name()}).used
                            : result.others;
    for (std::size_t i = 0; i < resource_count; ++i) {
      to.at(i) += each->used(static_cast<resource>(i));
    }
    result.other_count += is_row ? 0 : 1;
  }
  return result;
}

std::optional<budget::verdict> budget::refused(const account& account,
                                               const item& item,
                                               std::uint64_t amount,
                                               bool is_operator) const noexcept {
  const kind& kind = kind_of(item.what);
  const auto exceeds_quota = [&](const node& node) {
    const terms own{.capacity = node.capacity(item.what), .used = node.used(item)};
    return may_hold(kind, own, amount, is_operator) != permission::yes;
  };
  if (account.uid_ && exceeds_quota(*account.uid_)) {
    return verdict{account.uid_.get()};
  }
  std::uint64_t total = whole_->capacity(item.what);
  bool is_of_process = false;
  if (process_ && process_budget::is_limited(item.what)) {
    // What other domains hold, or may take, is not there for principals to share.
    const std::uint64_t share = process_->share_of(item.what, whole_->used(item));
    is_of_process = share != 0 && (total == 0 || share < total);
    total = is_of_process ? share : total;
  }
  terms whole{.capacity = total,
              .used = whole_->used(item),
              .reserved = std::min(total / operator_part, kind.max_reserved)};
  const node* child = account.principal_.get();
  for (; child->parent_ != nullptr; child = child->parent_.get()) {
    if (exceeds_quota(*child)) {
      return verdict{child};
    }
    whole.held = child->used(item);
    whole.is_shared = true;
    whole.users = any_number;
    if (child->parent_ == whole_) {
      whole.users = whole_->use_of(item).users + (whole.held == 0 ? 1 : 0);
      // The operator sets the quota: one principal may use all of it if no other does.
      whole.is_shared = !is_quota(item.what) || whole.held != whole.used;
    }
    const permission got = may_hold(kind, whole, amount, is_operator);
    if (got != permission::yes) {
      return got == permission::whole && is_of_process
                 ? verdict{}
                 : verdict{whole_.get(), got == permission::share};
    }
  }
  return std::nullopt;
}

std::uint64_t budget::counted(const item& noun, std::uint64_t amount) const noexcept {
  if (noun.what != resource::memory_bytes) {
    return amount;
  }
  return amount > unlimited / memory_copies_ ? unlimited : amount * memory_copies_;
}

void budget::add(account& account, const item& item, std::uint64_t amount) noexcept {
  for (node* at = account.principal_.get(); at != nullptr; at = at->parent_.get()) {
    at->add(item, amount);
  }
  if (account.uid_) {
    account.uid_->add(item, amount);
  }
}

void budget::remove(account& account, const item& item, std::uint64_t amount) noexcept {
  for (node* at = account.principal_.get(); at != nullptr; at = at->parent_.get()) {
    at->remove(item, amount);
  }
  if (account.uid_) {
    account.uid_->remove(item, amount);
  }
}

bool budget::take_of_process(const item& item, std::uint64_t amount) noexcept {
  return !process_ || !process_budget::is_limited(item.what) ||
         process_->take(item.what, amount, used(item.what));
}

bool budget::try_take(account& account,
                      const item& item,
                      std::uint64_t amount,
                      bool is_operator) noexcept {
  amount = counted(item, amount);
  if (refused(account, item, amount, is_operator) || !take_of_process(item, amount)) {
    return false;
  }
  add(account, item, amount);
  return true;
}

std::optional<error> budget::take(account& account,
                                  const item& item,
                                  std::uint64_t amount,
                                  bool is_operator) {
  amount = counted(item, amount);
  if (const auto why = refused(account, item, amount, is_operator)) {
    return refusal(account, item, amount, *why);
  }
  if (!take_of_process(item, amount)) {
    return refusal(account, item, amount, {});
  }
  add(account, item, amount);
  return std::nullopt;
}

void budget::charge(account& account, const item& item, std::uint64_t amount) noexcept {
  amount = counted(item, amount);
  if (process_ && process_budget::is_limited(item.what)) {
    process_->charge(item.what, amount);
  }
  add(account, item, amount);
}

void budget::release(account& account, const item& item, std::uint64_t amount) noexcept {
  amount = counted(item, amount);
  remove(account, item, amount);
  if (process_ && process_budget::is_limited(item.what)) {
    process_->release(item.what, amount);
  }
}

bool budget::within_share(const account& account, const item& item) const noexcept {
  return !refused(account, item, 0, false);
}

error budget::refusal(const account& account,
                      const item& item,
                      std::uint64_t amount,
                      const verdict& why) const {
  const kind& kind = kind_of(item.what);
  std::string gpu;
  if (item.what == resource::gpu_bytes) {
    gpu = gpus_[item.gpu].empty() ? " of a GPU" : " of " + gpus_[item.gpu];
  }
  const std::string wanted =
      "no room for " + amount_text(kind, amount) + " more " + std::string(kind.name) + gpu;
  if (why.at == nullptr) {
    return {kind.error_if_full,
            {},
            {},
            wanted + ": the brokers of this process hold " +
                amount_text(kind, process_->used(item.what)) + " of " +
                amount_text(kind, process_->capacity(item.what)) +
                ", and this domain its full share",
            kind.remedy};
  }
  const std::uint64_t limit = why.at->capacity(item.what);
  const std::string use = amount_text(kind, why.at->used(item)) + " of " +
                          amount_text(kind, limit == 0 ? unlimited : limit);
  if (why.is_share) {
    return {errc::share_exceeded,
            {},
            {},
            wanted + ": " + account.name() + " holds " +
                amount_text(kind, account.principal_->used(item)) + ", all members " + use +
                ", and the rest is reserved for other members",
            kind.remedy};
  }
  if (why.at->kind() == level::domain) {
    return {kind.error_if_full,
            {},
            {},
            wanted + ": " + use + " are in use in this domain",
            kind.remedy};
  }
  const std::string_view where =
      why.at->kind() == level::uid ? " in all pods and containers of this domain" : "";
  return {kind.error_if_full,
          {},
          {},
          amount_text(kind, amount) + gpu + " do not fit into the quota of " + why.at->name() +
              std::string(where) + ": " + use + " are in use",
          kind.remedy};
}

// ---- charges ----

void charges::take(resource resource, std::uint64_t amount) {
  if (auto why = of_->take(*who_, resource, amount, is_operator_)) {
    throw *std::move(why);
  }
  held_[static_cast<std::size_t>(resource)] += amount;
}

void charges::keep_on(std::uint32_t gpu, std::uint64_t amount) noexcept {
  gpu_ = gpu;
  held_[static_cast<std::size_t>(resource::host_bytes)] = amount;
}

void charges::take_on(std::string_view gpu, std::uint64_t amount) {
  const std::uint32_t number = of_->number_of_gpu(*who_, gpu);
  if (auto why = of_->take(*who_, {resource::gpu_bytes, number}, amount, is_operator_)) {
    throw *std::move(why);
  }
  keep_on(number, amount);
}

void charges::charge_on(std::string_view gpu, std::uint64_t amount) {
  const std::uint32_t number = of_->number_of_gpu(*who_, gpu, true);
  of_->charge(*who_, {resource::gpu_bytes, number}, amount);
  keep_on(number, amount);
}

bool charges::try_take(resource resource, std::uint64_t amount) noexcept {
  if (!of_->try_take(*who_, resource, amount, is_operator_)) {
    return false;
  }
  held_[static_cast<std::size_t>(resource)] += amount;
  return true;
}

void charges::charge(resource resource, std::uint64_t amount) noexcept {
  of_->charge(*who_, resource, amount);
  held_[static_cast<std::size_t>(resource)] += amount;
}

void charges::release(resource resource, std::uint64_t amount) noexcept {
  of_->release(*who_, resource, amount);
  held_[static_cast<std::size_t>(resource)] -= amount;
}

void charges::reset() noexcept {
  if (of_ == nullptr) {
    return;
  }
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (const std::uint64_t amount = std::exchange(held_[i], 0); amount != 0) {
      const auto what = static_cast<resource>(i);
      const bool is_on_gpu = what == resource::host_bytes && gpu_ != no_gpu;
      of_->release(*who_, is_on_gpu ? item(resource::gpu_bytes, gpu_) : item(what), amount);
    }
  }
  gpu_ = no_gpu;
  who_.reset();
}

}  // namespace gpushm::core
