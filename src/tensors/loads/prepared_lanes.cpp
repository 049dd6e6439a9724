// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/prepared_lanes.hpp"

#include <exception>
#include <utility>

#include "base/process/thread.hpp"
#include "base/report/log.hpp"
#include "gpu/driver/devices.hpp"

namespace gpushm::tensors {

namespace {

/// Where `client::create` puts a segment; -1: in host memory, or nowhere. Throws as
/// `driver::find_device`.
int ordinal_of(const std::string& device) {
  if (device == "host") {
    return -1;
  }
  if (device == "auto") {
    const auto& gpus = driver::visible_gpus();
    return gpus.empty() ? -1 : gpus.front().ordinal;
  }
  return driver::find_device(device).ordinal;
}

}  // namespace

prepared_lanes::prepared_lanes(std::string device, unsigned lanes, std::string name)
    : device_(std::move(device)), name_(std::move(name)) {
  if (device_ == "host") {
    return;
  }
  threads_.reserve(lanes);
  lanes_.reserve(lanes);
  preparing_ = lanes;
  for (unsigned started = 0; started != lanes; ++started) {
    try {
      threads_.push_back(base::start_thread("gpushm-load", [this] { prepare(); }));
    } catch (const std::exception& why) {  // the load needs as many threads, and reports it
      base::log(log_level::debug, why.what());
      const std::lock_guard lock(mutex_);
      preparing_ -= lanes - started;
      return;
    }
  }
}

void prepared_lanes::prepare() noexcept {
  std::unique_ptr<copy_lane> lane;
  try {
    if (const int ordinal = ordinal_of(device_); ordinal >= 0) {
      lane = copy_lane::prepare(ordinal, name_);
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
  const std::lock_guard lock(mutex_);
  --preparing_;
  if (lane != nullptr) {
    lanes_.push_back(std::move(lane));  // reserved
  }
  changed_.notify_all();
}

std::unique_ptr<copy_lane> prepared_lanes::take(segment& into, copy_lane::done report) {
  std::unique_ptr<copy_lane> result;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !lanes_.empty() || preparing_ == 0; });
    if (!lanes_.empty()) {
      result = std::move(lanes_.back());
      lanes_.pop_back();
    }
  }
  if (result == nullptr || result->ordinal() != into.ordinal()) {
    return copy_lane::open(into, std::move(report));
  }
  result->bind(into, std::move(report));
  return result;
}

}  // namespace gpushm::tensors
