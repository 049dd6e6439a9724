// SPDX-License-Identifier: Apache-2.0
#include "brokers.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/log.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr mode_t for_everybody = 0755;
constexpr mode_t for_this_user = 0700;

void make_directory(const std::string& path, mode_t mode) {
  if (base::retry([&] { return ::mkdir(path.c_str(), mode); }) != 0 && errno != EEXIST) {
    const int number = errno;
    throw error(base::errc_of_errno(number),
                "make directory",
                path,
                "mkdir: " + base::errno_text(number),
                "run the agent as root, or choose another place: --run-dir DIR");
  }
  // Whatever the umask says, and whatever it was before.
  base::checked("make directory", path, "chmod", [&] { return ::chmod(path.c_str(), mode); });
}

void check_name(const std::string& domain) {
  if (domain.empty() || domain.front() == '.' || domain.find('/') != std::string::npos) {
    throw error(errc::invalid_argument,
                "open domain",
                domain,
                "not a name for a domain: it becomes a directory's name");
  }
}

}  // namespace

broker_set::broker_set(broker_set_options options)
    : options_(std::move(options)), directory_(options_.run_dir + "/d") {
  make_directory(options_.run_dir, for_everybody);
  make_directory(directory_, for_this_user);
  for (const std::string& domain : options_.domains) {
    start(domain);
  }
}

std::string broker_set::directory_of(const std::string& domain) const {
  return directory_ + "/" + domain;
}

void broker_set::start(const std::string& domain) {
  make_directory(directory_of(domain), for_everybody);
  broker_options made;
  made.socket_path = directory_of(domain) + "/socket";
  made.domain = domain;
  made.mode = 0666;
  made.limits = options_.limits;
  made.raise_descriptor_limit = true;
  made.accept_fake_chunks = options_.accept_fake_chunks;
  open_.emplace(domain, broker::start(made));
}

std::string broker_set::open(const std::string& domain) {
  check_name(domain);
  const std::lock_guard lock(mutex_);
  if (!open_.contains(domain)) {
    start(domain);
    base::log(log_level::info, "domain " + domain + " is open");
  }
  return directory_of(domain);
}

void broker_set::close(const std::string& domain) {
  check_name(domain);
  const std::lock_guard lock(mutex_);
  if (std::find(options_.domains.begin(), options_.domains.end(), domain) !=
      options_.domains.end()) {
    throw error(errc::invalid_argument,
                "close domain",
                domain,
                "it is one of those that are always there",
                "take it out of broker.domains");
  }
  if (const auto found = open_.find(domain); found != open_.end()) {
    const broker_statistics last = found->second.statistics();
    open_.erase(found);
    base::log(log_level::info,
              "domain " + domain + " is closed, with " + std::to_string(last.segments) +
                  " segments and " + std::to_string(last.connections) + " clients");
  }
  std::error_code failed;
  std::filesystem::remove_all(directory_of(domain), failed);
  if (failed) {
    throw error(
        errc::system_error,
        "close domain",
        domain,
        "its directory " + directory_of(domain) + " could not be removed: " + failed.message());
  }
}

std::vector<std::string> broker_set::list() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const auto& [domain, serving] : open_) {
    names.insert(domain);
  }
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory_, failed), end; !failed && at != end;
       at.increment(failed)) {
    names.insert(at->path().filename().string());
  }
  for (const std::string& domain : options_.domains) {
    names.erase(domain);
  }
  return {names.begin(), names.end()};
}

std::vector<metrics::domain_reading> broker_set::readings() const {
  const std::lock_guard lock(mutex_);
  std::vector<metrics::domain_reading> all;
  for (const auto& [domain, serving] : open_) {
    all.push_back({domain, serving.statistics()});
  }
  return all;
}

}  // namespace gpushm::agent
