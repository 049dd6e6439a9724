// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/refresh_watch.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/registry/spec_directory.hpp"

namespace gpushm::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds quiet{200};
constexpr std::chrono::seconds max_burst{3};

// /dev and library directories contain many unrelated files.
bool is_of_driver(std::string_view name) {
  for (const std::string_view part : {"nvidia", "cuda", "dri", "card", "render"}) {
    if (name.find(part) != std::string_view::npos) {
      return true;
    }
  }
  return name.empty();  // the directory itself
}

void list(const std::string& directory, int depth, std::string& text) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator each(directory, failed); !failed && each != fs::directory_iterator();
       each.increment(failed)) {
    names.push_back(each->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", directory, name);
    text.append(path).append("\n");
    if (depth > 0 && fs::is_directory(path, failed)) {
      list(path, depth - 1, text);
    }
  }
}

}  // namespace

driver_watch::driver_watch(std::string proc_root, std::string documents)
    : proc_root_(std::move(proc_root)),
      documents_(std::move(documents)),
      directories_("watch the driver") {
  last_ = fingerprint();
}

void driver_watch::set_directories(std::vector<std::string> directories) {
  directories.push_back(documents_);
  directories_.set_directories(std::move(directories));
}

// The module, its GPUs and their MIG instances: capabilities contains a directory for each.
std::string driver_watch::fingerprint() const {
  std::string text;
  for (const char* file : {"/driver/nvidia/version", "/driver/nvidia-caps/mig-minors"}) {
    text.append(base::read_small_file(proc_root_ + file, std::size_t{1} << 20U).value_or("none\n"));
  }
  // The numbers of nvidia-uvm and nvidia-caps change when the modules are loaded again.
  const auto devices = base::read_small_file(proc_root_ + "/devices").value_or(std::string());
  for (const std::string_view line : base::lines_of(devices)) {
    if (line.find("nvidia") != std::string_view::npos) {
      text.append(line).append("\n");
    }
  }
  list(proc_root_ + "/driver/nvidia/gpus", 0, text);
  list(proc_root_ + "/driver/nvidia/capabilities", 4, text);
  return text;
}

driver_watch::changes driver_watch::take_events() {
  changes seen;
  directories_.take([&](const base::directory_watch::change& change) {
    if (change.directory == documents_) {
      seen.documents = seen.documents || change.whole || cdi::is_document_name(change.name);
    } else {
      seen.driver = seen.driver || change.whole || is_of_driver(change.name);
    }
  });
  return seen;
}

bool driver_watch::wait(std::chrono::milliseconds timeout, int stop_fd) {
  const auto started = std::chrono::steady_clock::now();
  auto until = started + timeout;
  bool changed = false;
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) {
      break;
    }
    std::array<pollfd, 2> waited{pollfd{directories_.fd(), POLLIN, 0}, pollfd{stop_fd, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    const int ready = base::retry(
        [&] { return ::poll(waited.data(), waited.size(), static_cast<int>(left.count())); });
    if (ready > 0 && waited[1].revents != 0) {
      return changed;
    }
    const changes seen = ready > 0 ? take_events() : changes();
    if (seen.driver || seen.documents) {
      // A driver installation writes about a hundred files.
      changed = changed || seen.driver;
      until = std::min(std::chrono::steady_clock::now() + quiet, started + timeout + max_burst);
    }
  }
  std::string now = fingerprint();
  changed = changed || now != last_;
  last_ = std::move(now);
  return changed;
}

}  // namespace gpushm::cli
