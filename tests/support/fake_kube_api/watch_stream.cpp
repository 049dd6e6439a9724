// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/watch_stream.hpp"

#include "base/text/text.hpp"
#include "tests/support/fake_kube_api/convert.hpp"

namespace gpushm::testing {

namespace {

using nlohmann::json;
using clock = std::chrono::steady_clock;

// Poll interval for the disconnection of a client.
constexpr std::chrono::milliseconds poll_interval{20};

std::string parameter(const http_request& request, const char* name) {
  const auto found = request.parameters.find(name);
  return found == request.parameters.end() ? std::string() : found->second;
}

class watch_stream {
 public:
  watch_stream(kube_state& state,
               const object_path& path,
               const field_selector& selector,
               const http_request& request,
               http_answer& answer)
      : state_(state), path_(path), selector_(selector), answer_(answer) {
    const auto seconds =
        base::number<unsigned>(parameter(request, "timeoutSeconds")).value_or(1'800);
    end_ = clock::now() + std::chrono::seconds(seconds);
    const std::string bookmarks = parameter(request, "allowWatchBookmarks");
    bookmarks_wanted_ = bookmarks == "true" || bookmarks == "1";
    from_ = base::number<std::uint64_t>(parameter(request, "resourceVersion")).value_or(0);
  }

  bool serve() {
    if (!answer_.begin(200, "application/json")) {
      return false;
    }
    std::unique_lock lock(state_.mutex);
    const std::uint64_t ends = state_.watch_ends;
    const std::uint64_t cuts = state_.watch_cuts;
    bookmarks_seen_ = state_.bookmarks;
    next_bookmark_ = clock::now() + state_.options.bookmark_interval;
    std::string text = from_ == 0 ? first_items() : std::string();
    ++state_.watches;
    state_.changed.notify_all();
    bool connected = true;
    while (true) {
      bool is_expired = false;
      text += new_events(is_expired);
      if (!text.empty()) {
        lock.unlock();
        connected = answer_.part(text);
        lock.lock();
        text.clear();
      }
      if (!connected || state_.stopping || state_.watch_cuts != cuts) {
        connected = false;
        break;
      }
      if (is_expired || state_.watch_ends != ends || clock::now() >= end_) {
        break;
      }
      state_.changed.wait_for(lock, poll_interval);
      connected = !answer_.connection().peer_gone();
    }
    --state_.watches;
    state_.changed.notify_all();
    lock.unlock();
    return connected && answer_.part({});
  }

 private:
  static std::string line(const char* type, json object) {
    return json{{"type", type}, {"object", std::move(object)}}.dump().append("\n");
  }

  std::string shown(const std::string& type, json object) const {
    from_stored(path_, object);
    return line(type.c_str(), std::move(object));
  }

  std::string first_items() {
    std::string text;
    for (json& each : state_.list(path_, selector_)) {
      text += shown("ADDED", std::move(each));
    }
    from_ = state_.version;
    return text;
  }

  std::string new_events(bool& is_expired) {
    if (from_ < state_.expired) {
      is_expired = true;
      std::string message("too old resource version: ");
      message.append(std::to_string(from_)).append(" (");
      message.append(std::to_string(state_.expired)).append(")");
      return line("ERROR",
                  {{"kind", "Status"},
                   {"apiVersion", "v1"},
                   {"metadata", json::object()},
                   {"status", "Failure"},
                   {"message", message},
                   {"reason", "Expired"},
                   {"code", 410}});
    }
    std::string text;
    for (const kube_event& each : state_.events) {
      if (each.version > from_ && each.key.kind == path_.kind &&
          (path_.space.empty() || path_.space == each.key.space) &&
          matches(selector_, each.object)) {
        text += shown(each.type, each.object);
      }
    }
    from_ = std::max(from_, state_.version);
    return text.append(bookmark());
  }

  std::string bookmark() {
    const bool is_time =
        state_.options.bookmark_interval.count() > 0 && clock::now() >= next_bookmark_;
    if (!bookmarks_wanted_ || (!is_time && bookmarks_seen_ == state_.bookmarks)) {
      return {};
    }
    bookmarks_seen_ = state_.bookmarks;
    next_bookmark_ = clock::now() + state_.options.bookmark_interval;
    // An empty object of the type; only its version is used.
    json object{
        {"metadata", {{"resourceVersion", std::to_string(from_)}, {"creationTimestamp", nullptr}}}};
    if (path_.kind->resource == "resourceslices") {
      object["spec"] = {{"driver", ""},
                        {"pool", {{"name", ""}, {"generation", 0}, {"resourceSliceCount", 0}}}};
    }
    return shown("BOOKMARK", std::move(object));
  }

  kube_state& state_;
  const object_path& path_;
  const field_selector& selector_;
  http_answer& answer_;
  clock::time_point end_;
  clock::time_point next_bookmark_;
  bool bookmarks_wanted_ = false;
  std::uint64_t bookmarks_seen_ = 0;
  std::uint64_t from_ = 0;
};

}  // namespace

bool serve_watch(kube_state& state,
                 const object_path& path,
                 const field_selector& selector,
                 const http_request& request,
                 http_answer& answer) {
  return watch_stream(state, path, selector, request, answer).serve();
}

}  // namespace gpushm::testing
