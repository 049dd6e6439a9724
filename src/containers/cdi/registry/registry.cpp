// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/registry/registry.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "base/text/quoted.hpp"
#include "containers/cdi/document/name.hpp"
#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/registry/spec_directory.hpp"

namespace gpushm::cdi {

namespace {

/// A document with its stamp, to detect changes.
struct loaded {
  std::shared_ptr<const source> document;
  file_stamp stamp;
  bool may_be_stale = true;  ///< the stamp alone cannot prove it unchanged
};

using place = std::pair<std::size_t, std::string>;  ///< priority and path

bool is_gone(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 && errno == ENOENT;
}

bool same(const source& a, const source& b) {
  return a.content == b.content && a.problems == b.problems && a.warnings == b.warnings;
}

/// Returns nullopt if it was removed since the directory was listed.
std::optional<loaded> load_document(const place& where) {
  loaded fresh;
  // Before reading: a change during the read then differs from this stamp next time.
  if (const auto stamp = stamp_of(where.second)) {
    fresh.stamp = *stamp;
    fresh.may_be_stale = is_fresh(*stamp);
  }
  parsed read = load(where.second);
  if (!read.problems.empty() && is_gone(where.second)) {
    return std::nullopt;
  }
  auto document = std::make_shared<source>();
  document->path = where.second;
  document->priority = where.first;
  document->content = std::move(read.content);
  document->problems = std::move(read.problems);
  document->warnings = std::move(read.warnings);
  fresh.document = std::move(document);
  return fresh;
}

struct definition {
  const source* from = nullptr;
  const device* found = nullptr;
};

/// `winner`: the document of higher priority that defines it; null: none.
yaml::problem conflict(const std::string& name,
                       const source& here,
                       const source& other,
                       const source* winner) {
  std::string text = fmt::format("device {} is also in {}; remove it from one of them, because ",
                                 base::in_quotes(name),
                                 other.path);
  text += winner == nullptr
              ? "neither is used"
              : fmt::format("engines use neither, nor the definition in {}", winner->path);
  return {here.path, 0, 0, "conflict", std::move(text)};
}

}  // namespace

struct registry::state {
  std::vector<std::string> directories;
  std::map<place, loaded> documents;
  std::vector<std::shared_ptr<const source>> sources;
  std::vector<yaml::problem> directory_problems;
  std::vector<yaml::problem> conflicts;
  std::map<std::string, registered_device, std::less<>> devices;
  std::map<std::string, std::vector<const source*>, std::less<>> in_conflict;

  /// Reads the directories. Reuses unchanged documents of `before`. Returns whether something
  /// differs from it.
  bool scan(const state* before) {
    bool changed = before == nullptr;
    for (std::size_t priority = 0; priority < directories.size(); ++priority) {
      const std::string& directory = directories[priority];
      for (const std::string& name : list_documents(directory, directory_problems)) {
        std::string path = directory;
        path.append("/").append(name);
        changed |= take({priority, std::move(path)}, before);
      }
    }
    return changed || documents.size() != before->documents.size() ||
           directory_problems != before->directory_problems;
  }

  bool take(const place& where, const state* before) {
    const loaded* known = nullptr;
    if (before != nullptr) {
      const auto found = before->documents.find(where);
      known = found == before->documents.end() ? nullptr : &found->second;
    }
    if (known != nullptr && !known->may_be_stale && stamp_of(where.second) == known->stamp) {
      documents.emplace(where, *known);
      return false;
    }
    auto fresh = load_document(where);
    if (!fresh) {
      return known != nullptr;
    }
    const bool unchanged = known != nullptr && same(*known->document, *fresh->document);
    if (unchanged) {
      fresh->document = known->document;
    }
    documents.emplace(where, std::move(*fresh));
    return !unchanged;
  }

  void resolve() {
    // The definitions of each name by priority, the highest last.
    std::map<std::string, std::map<std::size_t, std::vector<definition>>> names;
    for (const auto& [where, each] : documents) {
      sources.push_back(each.document);
      if (!each.document->problems.empty()) {
        continue;
      }
      const std::string prefix = each.document->content.kind + "=";
      for (const device& one : each.document->content.devices) {
        names[prefix + one.name][where.first].push_back({each.document.get(), &one});
      }
    }
    for (auto& [name, levels] : names) {
      const auto& [highest, winners] = *levels.rbegin();
      bool resolves = true;
      for (const auto& [priority, definitions] : levels) {
        if (definitions.size() > 1) {
          resolves = false;
          const bool hidden = priority < highest && winners.size() == 1;
          report_conflict(name, definitions, hidden ? winners[0].from : nullptr);
        }
      }
      if (resolves) {
        devices.emplace_hint(
            devices.end(), name, registered_device{winners[0].from, winners[0].found});
      }
    }
  }

  void report_conflict(const std::string& name,
                       const std::vector<definition>& definitions,
                       const source* winner) {
    for (const definition& each : definitions) {
      const source* other =
          each.from == definitions[0].from ? definitions[1].from : definitions[0].from;
      conflicts.push_back(conflict(name, *each.from, *other, winner));
      in_conflict[name].push_back(each.from);
    }
  }

  [[nodiscard]] std::string why_not(std::string_view name) const;
};

const std::vector<std::string>& default_directories() {
  static const std::vector<std::string> both{"/etc/cdi", "/var/run/cdi"};
  return both;
}

registry::registry(std::vector<std::string> directories) {
  auto fresh = std::make_shared<state>();
  fresh->directories = std::move(directories);
  fresh->scan(nullptr);
  fresh->resolve();
  state_ = std::move(fresh);
}

bool registry::refresh() {
  auto fresh = std::make_shared<state>();
  fresh->directories = state_->directories;
  if (!fresh->scan(state_.get())) {
    // Documents that were read again may have new stamps.
    auto same_devices = std::make_shared<state>(*state_);
    same_devices->documents = std::move(fresh->documents);
    state_ = std::move(same_devices);
    return false;
  }
  fresh->resolve();
  state_ = std::move(fresh);
  return true;
}

registered_device registry::find(std::string_view qualified_name) const {
  const auto found = state_->devices.find(qualified_name);
  return found == state_->devices.end() ? registered_device{} : found->second;
}

const std::map<std::string, registered_device, std::less<>>& registry::devices() const {
  return state_->devices;
}

const std::vector<std::shared_ptr<const source>>& registry::sources() const {
  return state_->sources;
}

std::vector<yaml::problem> registry::problems() const {
  std::vector<yaml::problem> problems = state_->directory_problems;
  for (const auto& each : state_->sources) {
    problems.insert(problems.end(), each->problems.begin(), each->problems.end());
  }
  problems.insert(problems.end(), state_->conflicts.begin(), state_->conflicts.end());
  return problems;
}

const std::vector<std::string>& registry::directories() const {
  return state_->directories;
}

std::string registry::why_not(std::string_view qualified_name) const {
  return state_->why_not(qualified_name);
}

std::string registry::state::why_not(std::string_view name) const {
  constexpr std::size_t shown = 8;
  const auto wanted = parse_qualified_name(name);
  if (!wanted) {
    return base::in_quotes(name) + " is not a device name (vendor/class=name)";
  }
  if (const auto found = in_conflict.find(name); found != in_conflict.end()) {
    return fmt::format("{} and {} both define it", found->second[0]->path, found->second[1]->path);
  }
  for (const auto& each : sources) {
    if (!each->problems.empty() && each->content.kind == wanted->kind) {
      return "the document that may define it is invalid: " + to_string(each->problems.front());
    }
  }
  // The devices of that kind, or the known kinds.
  std::string listed;
  std::size_t count = 0;
  std::string last;
  const std::string prefix = wanted->kind + "=";
  const bool kind_known = devices.lower_bound(prefix) != devices.end() &&
                          devices.lower_bound(prefix)->first.starts_with(prefix);
  for (const auto& [one, where] : devices) {
    const std::string text = kind_known ? one : where.from->content.kind;
    if ((kind_known && !one.starts_with(prefix)) || text == last) {
      continue;
    }
    last = text;
    if (++count <= shown) {
      listed.append(listed.empty() ? "" : ", ")
          .append(kind_known ? text.substr(prefix.size()) : text);
    }
  }
  if (count > shown) {
    listed += fmt::format(" and {} more", count - shown);
  }
  if (kind_known) {
    return fmt::format("{} has no device {}; available: {}",
                       wanted->kind,
                       base::in_quotes(wanted->device),
                       listed);
  }
  return fmt::format("no document in {} has the kind {}{}{}",
                     fmt::join(directories, ", "),
                     wanted->kind,
                     listed.empty() ? "" : "; available: ",
                     listed);
}

}  // namespace gpushm::cdi
