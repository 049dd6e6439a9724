// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/driver_files/root_view.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <filesystem>
#include <memory>

#include "base/text/text.hpp"

namespace gpushm::discover {

namespace {

constexpr int max_links = 40;  // the kernel's limit

struct close_directory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

std::optional<std::string> link_target(const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const auto length = ::readlink(path.c_str(), target.data(), target.size());
  if (length <= 0 || static_cast<std::size_t>(length) >= target.size()) {
    return std::nullopt;
  }
  return std::string(target.data(), static_cast<std::size_t>(length));
}

std::string without_last_part(const std::string& path) {
  return path.substr(0, path.find_last_of('/'));
}

}  // namespace

root_view::root_view(std::string_view root) {
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(root.empty() ? "/" : root, failed);
  prefix_ = failed ? std::string(root) : absolute.lexically_normal().string();
  while (!prefix_.empty() && prefix_.back() == '/') {
    prefix_.pop_back();
  }
}

std::string root_view::outside(std::string_view inside) const {
  return prefix_.empty() ? std::string(inside) : join(prefix_, inside);
}

std::optional<std::string> root_view::walk(std::string_view inside, bool follow_last) const {
  std::string at;  // "" is the root
  std::vector<std::string> parts;
  push_parts(parts, inside);
  int links = 0;
  while (!parts.empty()) {
    const std::string part = std::move(parts.back());
    parts.pop_back();
    if (part == ".") {
      continue;
    }
    if (part == "..") {
      at = at.empty() ? at : without_last_part(at);
      continue;
    }
    std::string next = at;
    next.append("/").append(part);
    struct stat about {};
    if (::lstat(outside(next).c_str(), &about) != 0) {
      return std::nullopt;
    }
    if (!S_ISLNK(about.st_mode) || (parts.empty() && !follow_last)) {
      if (!parts.empty() && !S_ISDIR(about.st_mode)) {
        return std::nullopt;
      }
      at = std::move(next);
      continue;
    }
    const auto target = link_target(outside(next));
    if (!target || ++links > max_links) {
      return std::nullopt;
    }
    if (target->front() == '/') {
      at.clear();
    }
    push_parts(parts, *target);
  }
  return at.empty() ? "/" : at;
}

std::optional<std::string> root_view::resolve_parent(std::string_view inside) const {
  const std::string_view directory = base::directory_of(inside);
  auto known = resolved_.find(directory);
  if (known == resolved_.end()) {
    known = resolved_.emplace(directory, walk(directory, true)).first;
  }
  return known->second ? std::optional(join(*known->second, base::name_of(inside))) : std::nullopt;
}

std::optional<std::string> root_view::resolve(std::string_view inside) const {
  // Callers resolve many files of few directories: each directory is resolved once.
  const auto place = resolve_parent(inside);
  return place ? walk(*place, true) : std::nullopt;
}

const std::vector<std::string>& root_view::names(std::string_view inside) const {
  const auto known = listed_.find(inside);
  if (known != listed_.end()) {
    return known->second;
  }
  std::vector<std::string>& names = listed_[std::string(inside)];
  const auto real = walk(inside, true);
  const std::unique_ptr<DIR, close_directory> directory(real ? ::opendir(outside(*real).c_str())
                                                             : nullptr);
  if (directory == nullptr) {
    return names;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is local
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = static_cast<const char*>(entry->d_name);
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool root_view::has(std::string_view directory, std::string_view name) const {
  const auto& all = names(directory);
  return std::binary_search(all.begin(), all.end(), name);
}

void push_parts(std::vector<std::string>& parts, std::string_view path) {
  const auto more = base::split(path, "/");
  parts.insert(parts.end(), more.rbegin(), more.rend());
}

std::string join(std::string_view directory, std::string_view name) {
  std::string path(directory);
  while (!name.empty() && name.front() == '/') {
    name.remove_prefix(1);
  }
  if (!name.empty() && (path.empty() || path.back() != '/')) {
    path += '/';
  }
  return path.append(name);
}

}  // namespace gpushm::discover
