// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/slice_publisher.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "base/quoted.hpp"
#include "gpushm/error.hpp"
#include "kubelet/dra/observed.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* operation = "publish ResourceSlice";
constexpr const char* collection = "/resourceslices";
/// Poll interval for the slice when no events come.
constexpr std::chrono::minutes check_interval{5};
constexpr std::size_t longest_memory = 64;  // of deleted slices

std::string name_of(const nlohmann::json& slice) {
  return text_in(slice, "/metadata/name");
}

std::string uid_of(const nlohmann::json& slice) {
  return text_in(slice, "/metadata/uid");
}

std::string looking_at(const std::string& slice) {
  return "kubectl get resourceslice " + slice + " -o yaml --show-managed-fields";
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
    bool doubtful = std::exchange(doubtful_, false);
    lock.unlock();
    std::string problem;
    try {
      watch();
      if (doubtful) {
        node_uid_.clear();
        fetch_own();
        doubtful = false;
      }
      reconcile();
      wait.reset();
    } catch (const std::exception& failure) {
      problem = failure.what();  // also for a reply that is not a ResourceSlice
      take_failure(failure);
    }
    lock.lock();
    doubtful_ = doubtful_ || doubtful;
    say(problem);
    if (problem.empty()) {
      const bool has_news =
          changed_.wait_for(lock, stop, check_interval, [this] { return dirty_ || doubtful_; });
      doubtful_ = doubtful_ || !has_news;
    } else if (changed_.wait_for(lock, stop, wait.next(), [this] { return listed_again_; })) {
      wait.reset();
    }
    // Other changes are handled after the pause, so that a failing server gets no more requests.
  }
}

void slice_publisher::say(const std::string& problem) {
  const auto own = known_.find(slice_name(options_));
  const bool published = problem.empty() && lists_ > 0 && own != known_.end();
  if (!problem.empty() && problem != state_.problem) {
    base::log(log_level::warning, problem);
  } else if (published && !state_.published) {
    base::log(log_level::info,
              std::string("ResourceSlice ")
                  .append(own->first)
                  .append(" is published: ")
                  .append(std::to_string(options_.devices))
                  .append(options_.devices == 1 ? " device" : " devices")
                  .append(", generation ")
                  .append(std::to_string(generation_of(own->second))));
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
              std::string("the API server serves ResourceSlices of version ")
                  .append(version)
                  .append(" now, not ")
                  .append(watched_version_));
  }
  const std::string path = api_.path(collection);
  const std::string ours = std::string("spec.driver=")
                               .append(options_.driver)
                               .append(",spec.nodeName=")
                               .append(options_.node);
  auto subscription =
      through_.subscribe(path,
                         ours,
                         {[this](const std::vector<nlohmann::json>& items) { take_list(items); },
                          [this](const kube::watch_event& event) { take_event(event); },
                          [this](const std::exception& failure) { take_failure(failure); }});
  watched_version_ = version;
  const std::lock_guard lock(mutex_);
  subscription_ = std::move(subscription);
}

/// A failure of a request or of the watch.
void slice_publisher::take_failure(const std::exception& failure) {
  const auto* answer = dynamic_cast<const kube::api_error*>(&failure);
  if (answer == nullptr || !answer->not_found()) {
    return;
  }
  // Also the reply of a server that no longer serves this API version.
  api_.forget();
  {
    const std::lock_guard lock(mutex_);
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::take_list(const std::vector<nlohmann::json>& items) {
  {
    const std::lock_guard lock(mutex_);
    known_.clear();
    for (const nlohmann::json& slice : items) {
      know(slice);
    }
    ++lists_;
    listed_again_ = true;
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::take_event(const kube::watch_event& event) {
  if (event.type == "BOOKMARK" || !event.object.is_object()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (event.type != "DELETED") {
      know(event.object);
    } else {
      forget(event.object);
    }
    dirty_ = true;
  }
  changed_.notify_all();
}

void slice_publisher::know(const nlohmann::json& slice) {
  if (!is_of_this_node(slice, options_)) {
    return;
  }
  generation_ = std::max(generation_, generation_of(slice));
  // The watch may report a slice before the request that created it has been answered.
  const auto found = known_.find(name_of(slice));
  if (std::find(gone_.begin(), gone_.end(), uid_of(slice)) != gone_.end() ||
      (found != known_.end() && is_older(slice, found->second))) {
    return;
  }
  known_.insert_or_assign(name_of(slice), slice);
}

void slice_publisher::forget(const nlohmann::json& slice) {
  const std::string uid = uid_of(slice);
  gone_.push_back(uid);
  if (gone_.size() > longest_memory) {
    gone_.pop_front();
  }
  const auto found = known_.find(name_of(slice));
  if (found != known_.end() && uid_of(found->second) == uid) {
    known_.erase(found);
  }
}

void slice_publisher::reconcile() {
  std::map<std::string, nlohmann::json> known;
  {
    const std::lock_guard lock(mutex_);
    dirty_ = false;
    if (lists_ == 0) {
      return;
    }
    known = known_;
  }
  const std::string own = slice_name(options_);
  const auto found = known.find(own);
  const bool is_there = found != known.end() && is_in_own_pool(found->second, options_);
  std::exception_ptr refused;
  for (const auto& [name, slice] : known) {
    if (name == own && is_there) {
      continue;
    }
    try {
      remove(name, slice);
    } catch (const error&) {
      refused = std::current_exception();  // does not prevent publishing
    }
  }
  publish(is_there ? &found->second : nullptr);
  if (refused) {
    std::rethrow_exception(refused);
  }
}

void slice_publisher::publish(const nlohmann::json* current) {
  const auto is_right = [&] {
    return current != nullptr && !node_uid_.empty() &&
           difference(*current, wanted(generation_of(*current))).empty();
  };
  if (is_right()) {
    return;
  }
  // Fetched for each update: a recreated node has another UID, and objects owned by the old one are
  // garbage collected.
  ask_node();
  if (current == nullptr) {
    create();
  } else if (!is_right()) {
    replace(*current);
  }
}

void slice_publisher::ask_node() {
  node_uid_ = text_in(through_.get("/api/v1/nodes/" + options_.node), "/metadata/uid");
}

nlohmann::json slice_publisher::wanted(std::int64_t generation) {
  return make_slice(options_, api_.version(), node_uid_, std::max<std::int64_t>(generation, 1));
}

void slice_publisher::brake(write_brake& of) {
  if (of.take()) {
    return;
  }
  const std::string own = slice_name(options_);
  throw error(errc::too_many_requests,
              operation,
              own,
              "another client changes or deletes it after each write; it is written 10 times "
              "in a burst and then once in 30 s",
              std::string("find the client: ")
                  .append(looking_at(own))
                  .append("; another agent of this node, or a controller"));
}

void slice_publisher::take_answer(const nlohmann::json& written,
                                  const nlohmann::json& made,
                                  std::uint64_t lists) {
  bool is_newest = true;
  {
    const std::lock_guard lock(mutex_);
    is_newest = lists == lists_;
    if (is_newest) {
      know(made);
    }
  }
  if (!is_newest) {
    // A list may be newer than the reply; a deletion before it would not be reported again.
    fetch_own();
  }
  nlohmann::json kept = written;
  kept["metadata"].erase("resourceVersion");
  if (const std::string field = difference(made, kept); !field.empty()) {
    throw error(errc::protocol_error,
                operation,
                slice_name(options_),
                std::string("the API server keeps ")
                    .append(field)
                    .append(" with a different value than was written"),
                "check whether a mutating webhook changes ResourceSlices");
  }
}

void slice_publisher::create() {
  brake(writes_);
  observed outcome(observer_, "PublishResourceSlice");
  std::int64_t generation = 0;
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
    lists = lists_;
  }
  const nlohmann::json made_of = wanted(generation);
  try {
    take_answer(made_of, through_.create(api_.path(collection), made_of), lists);
  } catch (const kube::api_error& failure) {
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

void slice_publisher::replace(const nlohmann::json& found) {
  brake(writes_);
  observed outcome(observer_, "PublishResourceSlice");
  nlohmann::json better = wanted(generation_after(generation_of(found)));
  base::log(log_level::info,
            std::string("ResourceSlice ")
                .append(slice_name(options_))
                .append(" is rewritten: it differs in ")
                .append(difference(found, wanted(generation_of(found)))));
  better["metadata"]["resourceVersion"] = text_in(found, "/metadata/resourceVersion");
  better["metadata"]["uid"] = uid_of(found);
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    lists = lists_;
  }
  try {
    take_answer(
        better,
        through_.replace(api_.path(std::string(collection) + "/" + slice_name(options_)), better),
        lists);
  } catch (const kube::api_error& failure) {
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
                std::string("find the client: ").append(looking_at(name)));
  }
  try {
    through_.remove(api_.path(std::string(collection).append("/").append(name)), uid_of(slice));
  } catch (const kube::api_error& failure) {
    if (!failure.not_found() && !failure.conflict()) {
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  known_.erase(name);
}

/// The cached slice is stale: another client wrote, and the watch has not reported it yet.
void slice_publisher::fetch_own() {
  const std::string own = slice_name(options_);
  std::optional<nlohmann::json> found;
  std::uint64_t lists = 0;
  {
    const std::lock_guard lock(mutex_);
    lists = lists_;
  }
  try {
    found = through_.get(api_.path(std::string(collection).append("/").append(own)));
  } catch (const kube::api_error& failure) {
    if (!failure.not_found()) {
      throw;
    }
  }
  if (found && !is_of_this_node(*found, options_)) {
    throw error(
        errc::already_exists,
        operation,
        own,
        std::string("a ResourceSlice of node ")
            .append(base::in_quotes(text_in(*found, "/spec/nodeName")))
            .append(", pool ")
            .append(base::in_quotes(text_in(*found, "/spec/pool/name")))
            .append(" and driver ")
            .append(base::in_quotes(text_in(*found, "/spec/driver")))
            .append(" has this name"),
        std::string("find its creator, and remove it: ")
            .append(looking_at(own))
            .append("; kubectl delete resourceslice ")
            .append(own)
            .append(
                "; the ValidatingAdmissionPolicy resourceslices.gpushm.dev prevents agents from "
                "using names of other nodes"));
  }
  const std::lock_guard lock(mutex_);
  if (lists_ != lists) {
    // Which of the two is newer is unknown: fetch again.
    dirty_ = true;
    doubtful_ = true;
    return;
  }
  if (found) {
    know(*found);
  } else {
    known_.erase(own);
  }
  dirty_ = true;
}

}  // namespace gpushm::dra
