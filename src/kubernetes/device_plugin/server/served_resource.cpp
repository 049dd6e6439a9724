// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/served_resource.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/report/log.hpp"
#include "kubernetes/device_plugin/server/grpc_status.hpp"
#include "kubernetes/device_plugin/server/socket_name.hpp"

namespace gpushm::device_plugin {

namespace {

using check_call =
    outgoing_call<v1beta1::DevicePlugin, v1beta1::Empty, v1beta1::DevicePluginOptions>;
using register_call =
    outgoing_call<v1beta1::Registration, v1beta1::RegisterRequest, v1beta1::Empty>;

constexpr auto never = served_resource::clock::time_point::max();
/// A socket removed sooner than this is recreated with back-off: a process may remove it
/// repeatedly.
constexpr std::chrono::seconds removed_soon{1};

std::string text_of(std::chrono::milliseconds duration) {
  return duration.count() % 1000 == 0 ? fmt::format("{} s", duration.count() / 1000)
                                      : fmt::format("{} ms", duration.count());
}

}  // namespace

served_resource::served_resource(std::shared_ptr<device_plugin::resource> resource,
                                 const manager_options& options,
                                 const base::wakeup& wake,
                                 clock::time_point begin)
    : name_(resource->name()),
      options_(options),
      wake_(wake),
      what_(std::move(resource)),
      changed_(std::make_shared<std::atomic<bool>>(true)),
      backoff_(options.first_retry, options.max_retry),
      due_(begin) {
  listen();
}

served_resource::~served_resource() {
  what_->on_change({});
  call_.reset();
  stop_serving();
}

void served_resource::listen() {
  what_->on_change([changed = changed_, &wake = wake_] {
    changed->store(true);
    wake.signal();
  });
}

void served_resource::replace(std::shared_ptr<device_plugin::resource> resource) {
  what_->on_change({});
  what_ = std::move(resource);
  listen();
  if (service_ != nullptr) {
    service_->replace(what_);
  }
  changed_->store(true);
}

void served_resource::count() {
  const auto devices = what_->devices();
  devices_ = devices.size();
  healthy_ = static_cast<std::size_t>(
      std::count_if(devices.begin(), devices.end(), [](const auto& each) { return each.healthy; }));
}

served_resource::clock::time_point served_resource::advance(clock::time_point now,
                                                            const surroundings& around) noexcept {
  if (ended_) {
    return never;
  }
  try {
    detect_changes(now, around);
    if (phase_ == phase::checking) {
      check_done(now);
    } else if (phase_ == phase::registering) {
      register_done(now);
    } else if (phase_ == phase::registered) {
      watch_registration(now);
    }
    if (phase_ == phase::down && now >= due_) {
      serve(now, around);
    } else if (phase_ == phase::ready && now >= due_) {
      begin_register(now, around);
    }
  } catch (const error& why) {
    call_.reset();
    stop_serving();
    schedule_retry(now, phase::down, why);
  } catch (const std::exception& why) {
    call_.reset();
    stop_serving();
    schedule_retry(
        now, phase::down, {errc::system_error, "serve", name_, why.what(), "the agent retries"});
  }
  return due_;
}

void served_resource::detect_changes(clock::time_point now, const surroundings& around) {
  if (changed_->exchange(false)) {
    count();
    if (service_ != nullptr) {
      service_->publish();
    }
  }
  if (server_ != nullptr && !server_->is_reachable()) {
    // A kubelet removes sockets when it starts. A kubelet with an open stream must detect its end
    // first: otherwise it would treat that as the end of the new registration.
    const bool immediately = now - served_since_ >= removed_soon && service_->streams().open == 0;
    call_.reset();
    stop_serving();
    phase_ = phase::down;
    if (immediately) {
      backoff_.reset();
    }
    due_ = immediately ? now : now + backoff_.next();
    report({errc::peer_unreachable,
            "serve",
            name_,
            "its socket was removed",
            "the agent recreates it; no action is needed unless this repeats"});
  }
  const bool registers =
      phase_ == phase::ready || phase_ == phase::registering || phase_ == phase::registered;
  if (registers && around.kubelet && around.kubelet != kubelet_) {
    call_.reset();
    phase_ = phase::ready;
    backoff_.reset();
    due_ = now;
  }
  if (phase_ == phase::down && due_ == never && around.directory) {
    due_ = now;
  }
}

void served_resource::serve(clock::time_point now, const surroundings& around) {
  if (!around.directory) {
    due_ = never;
    report({errc::peer_unreachable,
            "serve",
            name_,
            "there is no directory " + options_.directory,
            "the resource is served as soon as a kubelet creates it"});
    return;
  }
  service_ =
      std::make_unique<service>(what_, options_.observer, [&wake = wake_] { wake.signal(); });
  const std::string path =
      fmt::format("{}/{}",
                  options_.directory,
                  unique_socket_name(options_.directory, options_.socket_prefix, name_));
  server_ =
      std::make_unique<kubelet::unix_server>(path, std::vector<grpc::Service*>{service_.get()});
  served_since_ = now;
  call_ = std::make_unique<check_call>(
      path,
      v1beta1::Empty(),
      options_.check_timeout,
      wake_,
      [](auto& stub, auto* context, const auto* request, auto* response, auto done) {
        stub.GetDevicePluginOptions(context, request, response, std::move(done));
      });
  phase_ = phase::checking;
  due_ = never;
}

void served_resource::check_done(clock::time_point now) {
  const auto result = call_->result();
  if (!result) {
    return;
  }
  call_.reset();
  if (!result->ok()) {
    throw error_of(*result,
                   "serve",
                   name_,
                   "the plugin's socket " + server_->path(),
                   "the agent recreates it; no action is needed unless this repeats");
  }
  phase_ = phase::ready;
  due_ = now;
}

void served_resource::begin_register(clock::time_point now, const surroundings& around) {
  const std::string kubelet = options_.directory + "/kubelet.sock";
  if (!around.kubelet) {
    due_ = never;
    report({errc::peer_unreachable,
            "register",
            name_,
            "there is no " + kubelet,
            "the resource is registered as soon as a kubelet creates it"});
    return;
  }
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(server_->path().substr(options_.directory.size() + 1));
  request.set_resource_name(name_);
  request.mutable_options()->set_get_preferred_allocation_available(what_->has_preferences());
  kubelet_ = around.kubelet;
  opened_before_ = service_->streams().opened;
  registering_since_ = now;
  call_ = std::make_unique<register_call>(
      kubelet,
      std::move(request),
      options_.register_timeout,
      wake_,
      [](auto& stub, auto* context, const auto* register_request, auto* response, auto done) {
        stub.Register(context, register_request, response, std::move(done));
      });
  phase_ = phase::registering;
  due_ = never;
}

void served_resource::register_done(clock::time_point now) {
  const auto result = call_->result();
  if (!result) {
    return;
  }
  call_.reset();
  std::optional<error> failure;
  if (!result->ok()) {
    failure = error_of(*result,
                       "register",
                       name_,
                       "the kubelet at " + options_.directory,
                       "the agent retries; check the kubelet's log");
  }
  if (options_.observer != nullptr) {
    options_.observer->finished("device_plugin",
                                "Register",
                                failure ? to_string(failure->code()) : "ok",
                                now - registering_since_);
  }
  if (failure) {
    schedule_retry(now, phase::ready, *failure);
    return;
  }
  phase_ = phase::registered;
  due_ = now + options_.list_timeout;
  ++times_registered_;
  last_error_.clear();
  last_logged_.clear();
  base::log(log_level::info,
            fmt::format("device plugin: registered {} with {}{}",
                        name_,
                        devices_,
                        devices_ == 1 ? " device" : " devices"));
}

void served_resource::watch_registration(clock::time_point now) {
  const auto streams = service_->streams();
  if (streams.open > 0) {
    due_ = never;
    return;
  }
  if (streams.opened > opened_before_) {
    if (now - registering_since_ >= options_.steady_after) {
      backoff_.reset();
    }
    schedule_retry(now,
                   phase::ready,
                   {errc::peer_unreachable,
                    "serve",
                    name_,
                    "the kubelet ended the list of devices",
                    "the agent registers again"});
  } else if (now >= due_) {
    schedule_retry(
        now,
        phase::ready,
        {errc::timed_out,
         "register",
         name_,
         "the kubelet accepted the registration but did not request the devices within " +
             text_of(options_.list_timeout),
         "the agent registers again; check the kubelet's log"});
  }
}

void served_resource::schedule_retry(clock::time_point now, phase next, const error& why) {
  phase_ = next;
  due_ = now + backoff_.next();
  report(why);
}

void served_resource::report(const error& why) {
  last_error_ = why.what();
  if (last_error_ != last_logged_) {
    // Logs a failure once, not at every retry.
    last_logged_ = last_error_;
    base::log(log_level::warning, "device plugin: " + last_error_);
  }
}

void served_resource::stop_serving() {
  if (service_ != nullptr) {
    service_->end(ending::immediately);
  }
  if (server_ != nullptr) {
    server_->stop(options_.end_timeout);
    server_.reset();
  }
  service_.reset();
}

void served_resource::end(ending ending) {
  ended_ = true;
  what_->on_change({});
  call_.reset();
  phase_ = phase::down;
  if (service_ != nullptr) {
    service_->end(ending);
  }
}

void served_resource::stop(clock::time_point until) {
  if (server_ != nullptr) {
    server_->stop(std::max(std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()),
                           std::chrono::milliseconds(0)));
    server_.reset();
  }
  service_.reset();
}

resource_status served_resource::status() const {
  return {name_,
          devices_,
          healthy_,
          server_ != nullptr && phase_ != phase::checking,
          phase_ == phase::registered,
          last_error_,
          times_registered_};
}

}  // namespace gpushm::device_plugin
