// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/slice_publisher.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/log.hpp"
#include "gpushm/error.hpp"
#include "kubelet/dra/observed.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* collection = "/resourceslices";
/// Without any news the slice is looked at this often all the same.
constexpr std::chrono::minutes check_interval{5};
constexpr std::size_t longest_memory = 64;  // of slices that are gone

std::string text_at(const nlohmann::json& object, const char* pointer) {
  const nlohmann::json::json_pointer place(pointer);
  return object.contains(place) && object.at(place).is_string()
             ? object.at(place).get<std::string>()
             : std::string();
}

std::string name_of(const nlohmann::json& slice) {
  return text_at(slice, "/metadata/name");
}

std::string uid_of(const nlohmann::json& slice) {
  return text_at(slice, "/metadata/uid");
}

/// Of the same object; versions of a resource are numbers that grow.
bool is_older(const nlohmann::json& slice, const nlohmann::json& other) {
  // 0 for what is no number.
  const auto version_of = [](const nlohmann::json& each) {
    return std::strtoull(text_at(each, "/metadata/resourceVersion").c_str(), nullptr, 10);
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
  bool doubtful = false;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    lock.unlock();
    std::string problem;
    try {
      watch_if_not_yet();
      if (std::exchange(doubtful, false)) {
        fetch_own();
      }
      reconcile();
      wait.reset();
    } catch (const std::exception& failure) {
      problem = failure.what();  // also of an answer that is none of a ResourceSlice
    }
    lock.lock();
    if (!problem.empty() && problem != state_.problem) {
      base::log(log_level::warning, problem);
    }
    state_.problem = problem;
    state_.published = problem.empty() && listed_;
    if (problem.empty()) {
      doubtful = !changed_.wait_for(lock, stop, check_interval, [this] { return dirty_; });
    } else {
      // What changes meanwhile is looked at then: a server that refuses is not asked more often.
      changed_.wait_for(lock, stop, wait.next(), [] { return false; });
    }
  }
}

void slice_publisher::watch_if_not_yet() {
  if (subscription_) {
    return;
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
                          [this](const kube::watch_event& event) { take_event(event); }});
  const std::lock_guard lock(mutex_);
  subscription_ = std::move(subscription);
}

void slice_publisher::take_list(const std::vector<nlohmann::json>& items) {
  {
    const std::lock_guard lock(mutex_);
    known_.clear();
    listed_ = true;
    dirty_ = true;
    for (const nlohmann::json& slice : items) {
      know(slice);
    }
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
  generation_ = std::max(generation_, generation_of(slice));
  // The watch may tell what became of a slice before the request that made it has been answered.
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
    if (!listed_) {
      return;
    }
    known = known_;
  }
  const std::string own = slice_name(options_);
  for (const auto& [name, slice] : known) {
    if (name != own) {
      remove(name, slice);
    }
  }
  const auto found = known.find(own);
  if (found == known.end()) {
    create();
  } else if (!contains(found->second, wanted(generation_of(found->second)))) {
    replace(found->second);
  }
}

nlohmann::json slice_publisher::wanted(std::int64_t generation) {
  // Asked anew each time: a node that was made again has another UID, and what an old one owns is
  // removed as garbage.
  const nlohmann::json node = through_.get("/api/v1/nodes/" + options_.node);
  return make_slice(options_,
                    api_.version(),
                    text_at(node, "/metadata/uid"),
                    std::max<std::int64_t>(generation, 1));
}

void slice_publisher::create() {
  observed operation(observer_, "PublishResourceSlice");
  std::int64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
  }
  try {
    const nlohmann::json made = through_.create(api_.path(collection), wanted(generation));
    const std::lock_guard lock(mutex_);
    know(made);
  } catch (const kube::api_error& failure) {
    if (!failure.conflict()) {
      operation.failed(failure);
      throw;
    }
    fetch_own();
  }
}

void slice_publisher::replace(const nlohmann::json& found) {
  observed operation(observer_, "PublishResourceSlice");
  nlohmann::json better = wanted(generation_of(found) + 1);
  better["metadata"]["resourceVersion"] = text_at(found, "/metadata/resourceVersion");
  better["metadata"]["uid"] = uid_of(found);
  try {
    const nlohmann::json made =
        through_.replace(api_.path(std::string(collection) + "/" + slice_name(options_)), better);
    const std::lock_guard lock(mutex_);
    know(made);
  } catch (const kube::api_error& failure) {
    if (!failure.conflict() && !failure.not_found()) {
      operation.failed(failure);
      throw;
    }
    fetch_own();
  }
}

void slice_publisher::remove(const std::string& name, const nlohmann::json& slice) {
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

/// What is known is old: somebody else wrote, and the watch has not said so yet.
void slice_publisher::fetch_own() {
  const std::string own = slice_name(options_);
  std::optional<nlohmann::json> found;
  try {
    found = through_.get(api_.path(std::string(collection).append("/").append(own)));
  } catch (const kube::api_error& failure) {
    if (!failure.not_found()) {
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  if (found) {
    know(*found);
  } else {
    known_.erase(own);
  }
  dirty_ = true;
}

}  // namespace gpushm::dra
