// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/identity.hpp"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>

#include "base/files/guarded_fd.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"
#include "tensors/files/hash.hpp"

namespace gpushm::tensors {

namespace {

void add(std::string& text, const file_stamp& stamp) {
  for (const std::uint64_t each : {stamp.device,
                                   stamp.inode,
                                   stamp.size_bytes,
                                   static_cast<std::uint64_t>(stamp.mtime_ns),
                                   static_cast<std::uint64_t>(stamp.ctime_ns)}) {
    text += std::to_string(each) + ' ';
  }
  text += '\n';
}

/// Returns false if the path has no file.
bool add(std::string& text, const std::string& path) {
  const auto stamp = stamp_at(path);
  if (stamp) {
    add(text, *stamp);
  }
  return stamp.has_value();
}

/// Only the files beside an index are its files.
bool is_name_of_file(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool add_all(std::string& text, const std::string& index, std::string_view names) {
  const auto folder = std::filesystem::path(index).parent_path();
  while (!names.empty()) {
    const std::size_t end = std::min(names.find('\n'), names.size());
    const std::string_view name = names.substr(0, end);
    if (!is_name_of_file(name) || !add(text, (folder / name).string())) {
      return false;
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return true;
}

}  // namespace

std::optional<index_file> index_of(const std::vector<std::string>& paths) {
  if (paths.size() != 1) {
    return std::nullopt;
  }
  const std::string path = first_file_of(paths.front());
  if (!is_index(path)) {
    return std::nullopt;
  }
  const auto file = base::guarded_fd::open([&] {
    return base::checked("load", path, "open", [&] {
      return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    });
  });
  return index_file{path, stamp_of(file.get(), path)};
}

model_identity identity_of(const std::optional<index_file>& index,
                           std::span<const model_file> files,
                           std::string_view selection) {
  std::string text;
  if (index) {
    add(text, index->stamp);
  }
  for (const model_file& each : files) {
    add(text, each.stamp);
  }
  text += selection;
  return identity_from(text);
}

std::string names_of(const std::optional<index_file>& index, std::span<const model_file> files) {
  std::string result;
  if (!index) {
    return result;
  }
  for (const model_file& each : files) {
    const std::string name = std::filesystem::path(each.path).filename().string();
    if (name.find('\n') != std::string::npos || result.size() + name.size() >= max_names_bytes) {
      return {};
    }
    result += name + '\n';
  }
  return result;
}

std::optional<model_identity> identity_at(const std::vector<std::string>& paths,
                                          std::string_view names,
                                          std::string_view selection) {
  std::string text;
  for (const std::string& path : paths) {
    std::string file;
    try {
      file = first_file_of(path);
    } catch (const error&) {
      return std::nullopt;  // the load reports why
    }
    const bool has_files = is_index(file);
    if (!add(text, file) ||
        (has_files && (paths.size() != 1 || names.empty() || !add_all(text, file, names)))) {
      return std::nullopt;
    }
  }
  if (text.empty()) {
    return std::nullopt;
  }
  text += selection;
  return identity_from(text);
}

}  // namespace gpushm::tensors
