// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/proc_counters.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {
namespace {

std::string proc_path(pid_t pid, std::string_view entry) {
  return "/proc/" + std::to_string(pid) + "/" + std::string(entry);
}

struct directory_closer {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

/// Names in a directory of /proc, without "." and "..".
std::vector<std::string> entries(const std::string& path) {
  const std::unique_ptr<DIR, directory_closer> directory(::opendir(path.c_str()));
  if (!directory) {
    throw harness_error("cannot read " + path);
  }
  std::vector<std::string> names;
  while (const auto* entry =
             ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe): own DIR
    if (entry->d_name[0] != '.') {
      names.emplace_back(entry->d_name);
    }
  }
  // Listing the process's own table includes the descriptor of the directory itself: leave it out.
  if (path == "/proc/" + std::to_string(::getpid()) + "/fd") {
    std::erase(names, std::to_string(::dirfd(directory.get())));
  }
  return names;
}

/// Empty when the link has disappeared.
std::string link_target(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::read_symlink(path, ignored).string();
}

std::string kind_of(const std::string& target) {
  for (const std::string_view numbered : {"socket", "pipe"}) {
    if (target.rfind(std::string(numbered) + ":[", 0) == 0) {
      return std::string(numbered);
    }
  }
  if (target.rfind("/memfd:", 0) == 0) {
    return target.substr(1, target.find(" (deleted)") - 1);
  }
  return target;
}

bool is_shared_memory(std::string_view target, std::string_view part) {
  const bool unnamed = target.substr(0, 7) == "/memfd:" ||
                       (target.size() > 10 && target.substr(target.size() - 10) == " (deleted)");
  return unnamed && target.find(part) != std::string_view::npos;
}

std::uint64_t status_field_kib(pid_t pid, std::string_view field) {
  std::ifstream file(proc_path(pid, "status"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(std::string(field) + ":", 0) == 0) {
      return std::stoull(line.substr(field.size() + 1));
    }
  }
  throw harness_error("no " + std::string(field) + " in " + proc_path(pid, "status"));
}

}  // namespace

descriptor_counts count_descriptors(pid_t pid) {
  descriptor_counts counts;
  const auto directory = proc_path(pid, "fd");
  for (const auto& name : entries(directory)) {
    const auto target = link_target(directory + "/" + name);
    if (!target.empty()) {
      ++counts[kind_of(target)];
    }
  }
  return counts;
}

std::size_t total(const descriptor_counts& counts) {
  return total(counts, {});
}

std::size_t total(const descriptor_counts& counts, std::string_view part) {
  std::size_t sum = 0;
  for (const auto& [kind, count] : counts) {
    sum += kind.find(part) != std::string::npos ? count : 0;
  }
  return sum;
}

std::string to_text(const descriptor_counts& counts) {
  std::string text;
  for (const auto& [kind, count] : counts) {
    text += (text.empty() ? "" : ", ") + kind + ": " + std::to_string(count);
  }
  return text;
}

std::size_t count_mappings(pid_t pid, std::string_view part) {
  std::ifstream file(proc_path(pid, "maps"));
  if (!file) {
    throw harness_error("cannot read " + proc_path(pid, "maps"));
  }
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const auto slash = line.find('/');
    if (slash != std::string::npos && line.find(part, slash) != std::string::npos) {
      ++count;
    }
  }
  return count;
}

std::uint64_t shared_memory_bytes(const std::vector<pid_t>& pids, std::string_view part) {
  std::set<std::pair<dev_t, ino_t>> seen;
  std::uint64_t bytes = 0;
  for (const auto pid : pids) {
    for (const std::string_view table : {"fd", "map_files"}) {
      const auto directory = proc_path(pid, table);
      for (const auto& name : entries(directory)) {
        if (table == "fd" && (name == "0" || name == "1" || name == "2")) {
          continue;  // standard streams may refer to a deleted file, too
        }
        const auto path = directory + "/" + name;
        struct stat status {};
        if (is_shared_memory(link_target(path), part) && ::stat(path.c_str(), &status) == 0 &&
            seen.emplace(status.st_dev, status.st_ino).second) {
          bytes += static_cast<std::uint64_t>(status.st_blocks) * 512U;
        }
      }
    }
  }
  return bytes;
}

char state_in(const std::string& directory) noexcept {
  try {
    std::ifstream file(directory + "/stat");
    std::string text;
    std::getline(file, text);
    // "PID (NAME) STATE …"; the name may contain any character.
    const auto name_end = text.rfind(") ");
    return name_end != std::string::npos ? text.at(name_end + 2) : '\0';
  } catch (const std::exception&) {
    return '\0';
  }
}

bool process_is_alive(pid_t pid) noexcept {
  const char state = state_in("/proc/" + std::to_string(pid));
  return state != '\0' && state != 'Z' && state != 'X';
}

std::vector<pid_t> descendants_of(pid_t pid) {
  std::vector<pid_t> result;
  std::ifstream children(proc_path(pid, "task/" + std::to_string(pid) + "/children"));
  for (pid_t each = 0; children >> each;) {
    result.push_back(each);
    const std::vector<pid_t> below = descendants_of(each);
    result.insert(result.end(), below.begin(), below.end());
  }
  return result;
}

std::string program_of(pid_t pid) {
  std::ifstream file(proc_path(pid, "comm"));
  std::string result;
  std::getline(file, result);
  return result;
}

std::size_t count_threads(pid_t pid) {
  return entries(proc_path(pid, "task")).size();
}

std::uint64_t anonymous_bytes(pid_t pid) {
  return status_field_kib(pid, "RssAnon") * 1024U;
}

}  // namespace gpushm_testing
