// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "base/files/file.hpp"
#include "base/text/text.hpp"
#include "containers/discover/driver_files/driver_files.hpp"
#include "containers/discover/driver_files/trusted_path.hpp"

namespace gpushm::discover {

namespace {

constexpr const char* shown_name = "MPS";
// nvidia-cuda-mps-control and nvidia-cuda-mps-server, truncated by the kernel.
constexpr std::string_view process_name = "nvidia-cuda-mps";

struct close_directory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

// Whether `user` runs an MPS daemon.
bool daemon_runs(const std::string& proc_root, uid_t user) {
  const std::unique_ptr<DIR, close_directory> processes(::opendir(proc_root.c_str()));
  if (processes == nullptr) {
    return false;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is local
  while (const dirent* entry = ::readdir(processes.get())) {
    const std::string_view name = static_cast<const char*>(entry->d_name);
    if (name.find_first_not_of("0123456789") != std::string_view::npos) {
      continue;
    }
    const std::string process = join(proc_root, name);
    struct stat about {};
    const auto comm = base::read_small_file(join(process, "comm"), 64);
    if (comm && comm->starts_with(process_name) && ::stat(process.c_str(), &about) == 0 &&
        about.st_uid == user) {
      return true;
    }
  }
  return false;
}

}  // namespace

findings find_mps(const root_view& root,
                  const std::string& directory,
                  const std::string& proc_root) {
  findings result;
  std::string place = std::filesystem::path(directory).lexically_normal().string();
  while (place.size() > 1 && place.back() == '/') {
    place.pop_back();
  }
  const std::string outside = root.outside(place);
  // Links are followed inside the root, so that the checks below apply to the same file.
  const auto real = root.resolve(place);
  if (!real) {
    result.missing.push_back({"sockets", {shown_name}});
    return result;
  }
  const auto leave_out = [&](const std::string& why) {
    result.incomplete.push_back(fmt::format("{} is left out: {}", shown_name, why));
    return result;
  };
  if (*real != place) {
    return leave_out(outside + " is a symbolic link or contains one");
  }
  struct stat about {};
  if (::lstat(outside.c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) {
    return leave_out(outside + " is not a directory");
  }
  // MPS makes it world-writable; no other user may have created it or be able to replace it.
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return leave_out(fmt::format("{} belongs to uid {}", outside, about.st_uid));
  }
  if (const auto problem = why_replaceable(std::string(base::directory_of(outside)))) {
    return leave_out(*problem);
  }
  if (!daemon_runs(proc_root, about.st_uid)) {
    result.missing.push_back({"sockets", {shown_name}});
    return result;
  }
  result.mounts.push_back({outside, default_mps_directory, socket_options(), {}});
  result.found.emplace_back("MPS");
  return result;
}

}  // namespace gpushm::discover
