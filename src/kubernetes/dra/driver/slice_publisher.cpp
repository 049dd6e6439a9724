// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/slice_publisher.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/process/backoff.hpp"
#include "base/report/log.hpp"
#include "base/text/quoted.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/observed.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* operation = "publish ResourceSlice";
constexpr const char* collection = "/resourceslices";
/// Poll interval for the slice when no events come.
constexpr std::chrono::minutes check_interval{5};
constexpr std::size_t max_deleted_uids = 64;  // of deleted slices

std::string name_of(const nlohmann::json& slice) {
  return text_in(slice, "/metadata/name");
}

std::string uid_of(const nlohmann::json& slice) {
  return text_in(slice, "/metadata/uid");
}

std::string inspect_command(const std::string& slice) {
  return fmt::format("kubectl get resourceslice {} -o yaml --show-managed-fields", slice);
}

/// For the same object; resource versions are increasing numbers.
bool is_older(const nlohmann::json& slice, const nlohmann::json& other) {
  // 0 when it is not a number.
  const auto version_of = [](const nlohmann::json& each) {
    return std::strtoull(text_in(each, "/metadata/resourceVersion").c_str(), nullptr, 10);
  };
  const auto one = version_of(slice);
  return uid_of(slice) == uid_of(other) && one != 0 && one < version_of(other);
}

}  // namespace

slice_publisher::slice_publisher(slice_options options,
                                 resource_api& api,
                                 cluster& through,
                                 base::operation_observer* observer)
    : options_(std::move(options)),
      api_(api),
      through_(through),
      observer_(observer),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

slice_publisher::~slice_publisher() {
  thread_.request_stop();
  thread_.join();
  subscription_.reset();
}

slice_publisher::state slice_publisher::now() const {
  const std::lock_guard lock(mutex_);
  state now = state_;
  if (now.problem.empty() && subscription_) {
    now.problem = subscription_->failure();
  }
  return now;
}

void slice_publisher::run(const std::stop_token& stop) {
  base::backoff wait;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    listed_again_ = false;
    bool stale = std::exchange(stale_, false);
    lock.unlock();
    std::string problem;
    try {
      watch();
      if (stale) {
        node_uid_.clear();
        fetch_own();
        stale = false;
      }
      reconcile();
      wait.reset();
    } catch (const std::exception& failure) {
      problem = failure.what();  // also for a reply that is not a ResourceSlice
      handle_failure(failure);
    }
    lock.lock();
    stale_ = stale_ || stale;
    report(problem);
    if (problem.empty()) {
      const bool changed =
          changed_.wait_for(lock, stop, check_interval, [this] { return dirty_ || stale_; });
      stale_ = stale_ || !changed;
    } else if (changed_.wait_for(lock, stop, wait.next(), [this] { return listed_again_; })) {
      wait.reset();
    }
    // Other changes are handled after the pause, so that they cause no requests to a failing
    // server.
  }
}

void slice_publisher::report(const std::string& problem) {
  const auto own = slices_.find(slice_name(options_));
  const bool published = problem.empty() && lists_ > 0 && own != slices_.end();
  if (!problem.empty() && problem != state_.problem) {
    base::log(log_level::warning, problem);
  } else if (published && !state_.published) {
    base::log(log_level::info,
              fmt::format("ResourceSlice {} is published: {}{}, generation {}",
                          own->first,
                          options_.devices,
                          options_.devices == 1 ? " device" : " devices",
                          generation_of(own->second)));
  }
  state_.problem = problem;
  state_.published = published;
}

void slice_publisher::watch() {
  const std::string version = api_.version();
  if (subscription_ && watched_version_ == version) {
    return;
  }
  if (subscription_ && !version_changes_.take()) {
    throw error(errc::unsupported_version,
                "watch ResourceSlices",
                options_.node,
                "the API server serves a different version of resource.k8s.io each time",
                "check whether its instances have the same version");
  }
  std::unique_ptr<cluster::subscription> old;
  {
    const std::lock_guard lock(mutex_);
    old = std::move(subscription_);
  }
  if (old) {
    old.reset();  // not under the lock: a handler may be waiting for it
    base::log(log_level::info,
              fmt::format("the API server now serves ResourceSlices of version {}, not {}",
                          version,
                          watched_version_));
  }
  const std::string path = api_.path(collection);
  const std::string selector =
      fmt::format("spec.driver={},spec.nodeName={}", options_.driver, options_.node);
  auto subscription =
      through_.subscribe(path,
                         selector,
                         {[this](const std::vector<nlohmann::json>& items) { handle_list(items); },
                          [this](const api_client::watch_event& event) { handle_event(event); },
                          [this](const std::exception& failure) { handle_failure(failure); }});
  watched_version_ = version;
  const std::lock_guard lock(mutex_);
  subscription_ = std::move(subscription);
}

/// A failure of a request or of the watch.
void slice_publisher::handle_failure(const std::exception& failure) {
  const auto* reply = dynamic_cast<const api_client::api_error*>(&failure);
  if (reply == nullptr || !reply->not_found()) {
    return;
  }
  // Also the reply of a server that no longer serves this API version.
  api_.invalidate();
  {
    const std::lock_guard lock(mutex_);
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::handle_list(const std::vector<nlohmann::json>& items) {
  {
    const std::lock_guard lock(mutex_);
    slices_.clear();
    for (const nlohmann::json& slice : items) {
      store(slice);
    }
    ++lists_;
    listed_again_ = true;
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::handle_event(const api_client::watch_event& event) {
  if (event.type == "BOOKMARK" || !event.object.is_object()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (event.type != "DELETED") {
      store(event.object);
    } else {
      erase(event.object);
    }
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::store(const nlohmann::json& slice) {
  if (!is_of_this_node(slice, options_)) {
    return;
  }
  generation_ = std::max(generation_, generation_of(slice));
  // The watch may report a slice before the server's reply to its creation arrives.
  const auto stored = slices_.find(name_of(slice));
  if (std::find(deleted_uids_.begin(), deleted_uids_.end(), uid_of(slice)) != deleted_uids_.end() ||
      (stored != slices_.end() && is_older(slice, stored->second))) {
    return;
  }
  slices_.insert_or_assign(name_of(slice), slice);
}

void slice_publisher::erase(const nlohmann::json& slice) {
  const std::string uid = uid_of(slice);
  deleted_uids_.push_back(uid);
  if (deleted_uids_.size() > max_deleted_uids) {
    deleted_uids_.pop_front();
  }
  const auto stored = slices_.find(name_of(slice));
  if (stored != slices_.end() && uid_of(stored->second) == uid) {
    slices_.erase(stored);
  }
}

void slice_publisher::reconcile() {
  std::map<std::string, nlohmann::json> slices;
  {
    const std::lock_guard lock(mutex_);
    dirty_ = false;
    if (lists_ == 0) {
      return;
    }
    slices = slices_;
  }
  const std::string own = slice_name(options_);
  const auto stored = slices.find(own);
  const bool exists = stored != slices.end() && is_in_own_pool(stored->second, options_);
  std::exception_ptr refused;
  for (const auto& [name, slice] : slices) {
    if (name == own && exists) {
      continue;
    }
    try {
      remove(name, slice);
    } catch (const error&) {
      refused = std::current_exception();  // does not prevent publishing
    }
  }
  publish(exists ? &stored->second : nullptr);
  if (refused) {
    std::rethrow_exception(refused);
  }
}

void slice_publisher::publish(const nlohmann::json* current) {
  const auto is_current = [&] {
    return current != nullptr && !node_uid_.empty() &&
           difference(*current, expected_slice(generation_of(*current))).empty();
  };
  if (is_current()) {
    return;
  }
  // Fetched for each update: a recreated node has another UID, and objects owned by the old one are
  // garbage collected.
  fetch_node_uid();
  if (current == nullptr) {
    create();
  } else if (!is_current()) {
    replace(*current);
  }
}

void slice_publisher::fetch_node_uid() {
  node_uid_ = text_in(through_.get("/api/v1/nodes/" + options_.node), "/metadata/uid");
}

nlohmann::json slice_publisher::expected_slice(std::int64_t generation) {
  return make_slice(options_, api_.version(), node_uid_, std::max<std::int64_t>(generation, 1));
}

void slice_publisher::check_rate(rate_limiter& limiter) {
  if (limiter.take()) {
    return;
  }
  const std::string own = slice_name(options_);
  throw error(errc::too_many_requests,
              operation,
              own,
              "another client changes or deletes it after each write; it is written 10 times "
              "in a burst and then once in 30 s",
              fmt::format("find the client: {}; another agent of this node, or a controller",
                          inspect_command(own)));
}

void slice_publisher::handle_reply(const nlohmann::json& written,
                                   const nlohmann::json& stored,
                                   std::uint64_t lists) {
  bool is_newest = true;
  {
    const std::lock_guard lock(mutex_);
    is_newest = lists == lists_;
    if (is_newest) {
      store(stored);
    }
  }
  if (!is_newest) {
    // A list may be newer than the reply; a deletion before it would not be reported again.
    fetch_own();
  }
  nlohmann::json kept = written;
  kept["metadata"].erase("resourceVersion");
  if (const std::string field = difference(stored, kept); !field.empty()) {
    throw error(
        errc::protocol_error,
        operation,
        slice_name(options_),
        fmt::format("the API server keeps {} with a different value than was written", field),
        "check whether a mutating webhook changes ResourceSlices");
  }
}

void slice_publisher::create() {
  check_rate(writes_);
  observed outcome(observer_, "PublishResourceSlice");
  std::int64_t generation = 0;
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
    lists = lists_;
  }
  const nlohmann::json object = expected_slice(generation);
  try {
    handle_reply(object, through_.create(api_.path(collection), object), lists);
  } catch (const api_client::api_error& failure) {
    if (!failure.conflict()) {
      outcome.failed(failure);
      throw;
    }
    fetch_own();
  } catch (const error& failure) {
    outcome.failed(failure);
    throw;
  }
}

void slice_publisher::replace(const nlohmann::json& stored) {
  check_rate(writes_);
  observed outcome(observer_, "PublishResourceSlice");
  nlohmann::json updated = expected_slice(generation_after(generation_of(stored)));
  base::log(log_level::info,
            fmt::format("ResourceSlice {} is rewritten: it differs in {}",
                        slice_name(options_),
                        difference(stored, expected_slice(generation_of(stored)))));
  updated["metadata"]["resourceVersion"] = text_in(stored, "/metadata/resourceVersion");
  updated["metadata"]["uid"] = uid_of(stored);
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    lists = lists_;
  }
  try {
    handle_reply(updated,
                 through_.replace(api_.path(fmt::format("{}/{}", collection, slice_name(options_))),
                                  updated),
                 lists);
  } catch (const api_client::api_error& failure) {
    if (!failure.conflict() && !failure.not_found()) {
      outcome.failed(failure);
      throw;
    }
    fetch_own();
  } catch (const error& failure) {
    outcome.failed(failure);
    throw;
  }
}

void slice_publisher::remove(const std::string& name, const nlohmann::json& slice) {
  if (!removals_.take()) {
    throw error(errc::too_many_requests,
                "remove superfluous ResourceSlice",
                name,
                "another client keeps creating ResourceSlices of this node and driver; one per "
                "second is removed",
                "find the client: " + inspect_command(name));
  }
  try {
    through_.remove(api_.path(fmt::format("{}/{}", collection, name)), uid_of(slice));
  } catch (const api_client::api_error& failure) {
    if (!failure.not_found() && !failure.conflict()) {
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  slices_.erase(name);
}

/// The cached slice is stale: another client wrote, and the watch has not reported it yet.
void slice_publisher::fetch_own() {
  const std::string own = slice_name(options_);
  std::optional<nlohmann::json> stored;
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    lists = lists_;
  }
  try {
    stored = through_.get(api_.path(fmt::format("{}/{}", collection, own)));
  } catch (const api_client::api_error& failure) {
    if (!failure.not_found()) {
      throw;
    }
  }
  if (stored && !is_of_this_node(*stored, options_)) {
    throw error(errc::already_exists,
                operation,
                own,
                fmt::format("a ResourceSlice of node {}, pool {} and driver {} has this name",
                            base::in_quotes(text_in(*stored, "/spec/nodeName")),
                            base::in_quotes(text_in(*stored, "/spec/pool/name")),
                            base::in_quotes(text_in(*stored, "/spec/driver"))),
                fmt::format("find its creator, and remove it: {}; kubectl delete resourceslice {}; "
                            "the ValidatingAdmissionPolicy resourceslices.gpushm.dev prevents "
                            "agents from using names of other nodes",
                            inspect_command(own),
                            own));
  }
  const std::lock_guard lock(mutex_);
  if (lists_ != lists) {
    // Which of the two is newer is unknown: fetch again.
    dirty_ = true;
    stale_ = true;
    return;
  }
  if (stored) {
    store(*stored);
  } else {
    slices_.erase(own);
  }
  dirty_ = true;
}

}  // namespace gpushm::dra
