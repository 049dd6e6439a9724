// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/dra_kubelet.hpp"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kubernetes/kubelet_api/pluginregistration_v1.grpc.pb.h"

namespace gpushm_testing {

namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::seconds dial_timeout{10};
constexpr std::chrono::milliseconds longest_wait{122'000};

void set_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + dial_timeout);
}

/// The first of `preferred` that the plugin supports; empty: none.
std::string choose(const std::vector<std::string>& preferred,
                   const std::vector<std::string>& supported) {
  const auto best = std::find_if(preferred.begin(), preferred.end(), [&](const auto& service) {
    return std::find(supported.begin(), supported.end(), service) != supported.end();
  });
  return best != preferred.end() ? *best : std::string();
}

}  // namespace

dra_kubelet::dra_kubelet(dra_kubelet_options options)
    : options_(std::move(options)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

dra_kubelet::~dra_kubelet() {
  thread_.request_stop();
  thread_.join();
}

void dra_kubelet::run(const std::stop_token& stop) {
  if (options_.delete_slices) {
    options_.delete_slices({});
  }
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    lock.unlock();
    scan();
    delete_slices_of_absent_drivers();
    lock.lock();
    changed_.notify_all();
    changed_.wait_for(lock, stop, options_.scan_interval, [] { return false; });
  }
}

void dra_kubelet::scan() {
  std::map<std::string, std::uint64_t> entries;
  std::error_code failed;
  for (const auto& each :
       std::filesystem::directory_iterator(options_.root + "/plugins_registry", failed)) {
    struct stat status {};
    if (!each.path().filename().string().starts_with('.') &&
        ::lstat(each.path().c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      entries.emplace(each.path().string(), status.st_ino);
    }
  }
  for (auto file = files_.begin(); file != files_.end();) {
    const auto there = entries.find(file->first);
    if (there != entries.end() && there->second == file->second.inode) {
      ++file;
      continue;
    }
    // The socket was removed or replaced: deregister.
    {
      const std::lock_guard lock(mutex_);
      std::erase(plugins_, file->second.plugin);
    }
    file = files_.erase(file);
  }
  for (const auto& [path, inode] : entries) {
    socket_file& file = files_[path];
    file.inode = inode;
    if (!file.plugin && clock::now() >= file.next_try) {
      register_from(path, file);
    }
  }
}

void dra_kubelet::register_from(const std::string& path, socket_file& file) {
  const auto channel = grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
  const auto stub = pluginregistration::Registration::NewStub(channel);
  dra_registration attempt;
  pluginregistration::PluginInfo info;
  {
    grpc::ClientContext context;
    set_deadline(context);
    const grpc::Status status = stub->GetInfo(&context, {}, &info);
    if (!status.ok()) {
      attempt.error = status.error_message();
    }
  }
  attempt.driver = info.name();
  attempt.endpoint = info.endpoint().empty() ? path : info.endpoint();
  attempt.supported = {info.supported_versions().begin(), info.supported_versions().end()};
  attempt.service = choose(options_.services, attempt.supported);
  if (attempt.error.empty()) {
    const std::lock_guard lock(mutex_);
    const bool taken = std::any_of(plugins_.begin(), plugins_.end(), [&](const auto& each) {
      return each->driver() == attempt.driver && each->endpoint() == attempt.endpoint;
    });
    if (info.type() != "DRAPlugin") {
      attempt.error = "no handler for plugins of type " + info.type();
    } else if (attempt.service.empty()) {
      attempt.error = "no gRPC service that this kubelet supports";
    } else if (taken) {
      attempt.error = "endpoint is already registered";
    } else {
      attempt.error = options_.refusal;
    }
  }
  if (attempt.error.empty()) {
    file.plugin = std::make_shared<dra_plugin>(attempt.driver,
                                               attempt.endpoint,
                                               attempt.service,
                                               choose(options_.health_services, attempt.supported),
                                               options_.health_retry);
    static_cast<void>(file.plugin->is_connected());
  } else {
    file.next_try = clock::now() + file.wait;
    file.wait = std::min(2 * file.wait, longest_wait);
  }
  {
    grpc::ClientContext context;
    set_deadline(context);
    pluginregistration::RegistrationStatus notification;
    notification.set_plugin_registered(attempt.error.empty());
    notification.set_error(attempt.error);
    pluginregistration::RegistrationStatusResponse nothing;
    static_cast<void>(stub->NotifyRegistrationStatus(&context, notification, &nothing));
  }
  const std::lock_guard lock(mutex_);
  if (file.plugin) {
    plugins_.push_back(file.plugin);
    drivers_.insert(attempt.driver);
  }
  registrations_.push_back(std::move(attempt));
}

void dra_kubelet::delete_slices_of_absent_drivers() {
  std::vector<std::string> due;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& driver : drivers_) {
      const bool connected = std::any_of(plugins_.begin(), plugins_.end(), [&](const auto& each) {
        return each->driver() == driver && each->is_connected();
      });
      if (connected) {
        away_since_.erase(driver);
        continue;
      }
      const auto since = away_since_.emplace(driver, clock::now()).first->second;
      if (since != clock::time_point::max() && clock::now() >= since + options_.wipe_delay) {
        away_since_[driver] = clock::time_point::max();  // once
        due.push_back(driver);
      }
    }
  }
  for (const std::string& driver : due) {
    if (options_.delete_slices) {
      options_.delete_slices(driver);
    }
  }
}

std::shared_ptr<dra_plugin> dra_kubelet::plugin_of(const std::string& driver) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<dra_plugin> best;
  for (const auto& each : plugins_) {
    if (each->driver() == driver && (!best || each->is_connected() || !best->is_connected())) {
      best = each;
    }
  }
  return best;
}

std::size_t dra_kubelet::plugins_of(const std::string& driver) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(plugins_.begin(), plugins_.end(), [&](const auto& each) {
        return each->driver() == driver;
      }));
}

bool dra_kubelet::wait_registered(const std::string& driver, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] {
    return std::any_of(plugins_.begin(), plugins_.end(), [&](const auto& each) {
      return each->driver() == driver && each->is_connected();
    });
  });
}

std::vector<dra_registration> dra_kubelet::registrations() const {
  const std::lock_guard lock(mutex_);
  return registrations_;
}

dra_responses dra_kubelet::prepare(const std::string& driver,
                                   const std::vector<dra_claim>& claims) {
  dra_responses answers;
  std::vector<dra_claim> to_prepare;
  {
    const std::lock_guard lock(mutex_);
    for (const dra_claim& each : claims) {
      const auto known = prepared_.find(each.uid);
      if (known != prepared_.end()) {
        answers[each.uid] = known->second;
      } else {
        to_prepare.push_back(each);
      }
    }
  }
  if (to_prepare.empty()) {
    return answers;
  }
  const std::shared_ptr<dra_plugin> plugin = plugin_of(driver);
  if (!plugin) {
    for (const dra_claim& each : to_prepare) {
      answers[each.uid].error = "DRA driver " + driver + " is not registered";
    }
    return answers;
  }
  for (auto& [uid, answer] :
       call_prepare(plugin->channel(), plugin->service(), to_prepare, options_.call_timeout)) {
    if (answer.error.empty()) {
      const std::lock_guard lock(mutex_);
      prepared_[uid] = answer;
    }
    answers[uid] = answer;
  }
  return answers;
}

dra_responses dra_kubelet::unprepare(const std::string& driver,
                                     const std::vector<dra_claim>& claims) {
  const std::shared_ptr<dra_plugin> plugin = plugin_of(driver);
  dra_responses answers;
  if (!plugin) {
    for (const dra_claim& each : claims) {
      answers[each.uid].error = "DRA driver " + driver + " is not registered";
    }
    return answers;
  }
  answers = call_unprepare(plugin->channel(), plugin->service(), claims, options_.call_timeout);
  const std::lock_guard lock(mutex_);
  for (const auto& [uid, answer] : answers) {
    if (answer.error.empty()) {
      prepared_.erase(uid);
    }
  }
  return answers;
}

}  // namespace gpushm_testing
