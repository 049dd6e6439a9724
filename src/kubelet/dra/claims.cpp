// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/claims.hpp"

#include <utility>

#include "base/log.hpp"
#include "gpushm/error.hpp"
#include "kubelet/dra/turn.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* operation = "prepare claim";

/// The server reported that the claim is gone, as opposed to being unreachable.
bool is_told(const error& failure, const claim_reference& claim) {
  if (const auto* answer = dynamic_cast<const kube::api_error*>(&failure)) {
    return answer->object_is_missing(claim.name);
  }
  return failure.code() == errc::gone_or_replaced || failure.code() == errc::invalid_argument;
}

}  // namespace

claims::claims(claims_options options, resource_api& api, cluster& through, domains& opened)
    : options_(std::move(options)),
      api_(api),
      through_(through),
      domains_(opened),
      documents_(options_.cdi_directory) {}

nlohmann::json claims::fetch(const claim_reference& claim) {
  const auto ask = [&] {
    return through_.get(api_.path(std::string("/namespaces/")
                                      .append(claim.name_space)
                                      .append("/resourceclaims/")
                                      .append(claim.name)));
  };
  const std::string asked = api_.version();
  try {
    return ask();
  } catch (const kube::api_error& failure) {
    // Also the reply of a server that no longer serves this API version.
    if (!failure.not_found()) {
      throw;
    }
    api_.forget();
    if (api_.version() == asked) {
      throw;
    }
  }
  return ask();
}

prepared_claim claims::allocation_of(const claim_reference& claim,
                                     const std::optional<prepared_claim>& before) {
  try {
    return read_allocation(fetch(claim), claim, options_.owner);
  } catch (const error& failure) {
    const bool told = is_told(failure, claim);
    if (before && !told) {
      return *before;
    }
    const bool answered = dynamic_cast<const kube::api_error*>(&failure) != nullptr;
    if (answered && told) {
      throw error(errc::gone_or_replaced,
                  operation,
                  to_string(claim),
                  "the claim no longer exists on the API server",
                  "pods that use it cannot start until it is recreated");
    }
    if (told || (!answered && failure.code() == errc::protocol_error)) {
      throw;
    }
    throw failure.in(operation, to_string(claim));
  }
}

void claims::make(const prepared_claim& claim) {
  const std::string directory = domains_.open(claim.domain);
  documents_.write(claim, directory);
  const std::lock_guard lock(mutex_);
  troubles_.erase(claim.claim.uid);
}

void claims::unmake(const std::string& uid, const std::string& domain) {
  documents_.remove(uid);
  domains_.close(domain);
  const std::lock_guard lock(mutex_);
  troubles_.erase(uid);
}

void claims::undo(const prepared_claim& claim) {
  // The sweep removes leftovers; the caller receives the failure that led here.
  const auto quietly = [](const auto& step) {
    try {
      step();
    } catch (const error& failure) {
      base::log(log_level::warning, failure.what());
    }
  };
  quietly([&] { documents_.remove(claim.claim.uid); });
  quietly([&] { domains_.close(claim.domain); });
}

void claims::store(const prepared_claim& claim) {
  const std::lock_guard lock(mutex_);
  checkpoint next = state_;
  next.claims.insert_or_assign(claim.claim.uid, claim);
  file_->save(next);
  state_ = std::move(next);
}

void claims::drop(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  checkpoint next = state_;
  next.claims.erase(uid);
  file_->save(next);
  state_ = std::move(next);
  unallocated_.erase(uid);
}

std::optional<prepared_claim> claims::find(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = state_.claims.find(uid);
  return found != state_.claims.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<prepared_claim> claims::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<prepared_claim> every;
  every.reserve(state_.claims.size());
  for (const auto& [uid, claim] : state_.claims) {
    every.push_back(claim);
  }
  return every;
}

prepared_claim claims::prepare(const claim_reference& claim) {
  check(claim);
  const turn mine(*this, claim.uid);
  const std::optional<prepared_claim> before = find(claim.uid);
  prepared_claim wanted = allocation_of(claim, before);
  try {
    make(wanted);
    if (before != wanted) {
      store(wanted);
    }
  } catch (const error& failure) {
    if (!before) {
      undo(wanted);
    }
    throw failure.in(operation, to_string(claim));
  }
  return wanted;
}

void claims::unprepare(const claim_reference& claim) {
  if (!may_be_uid(claim.uid)) {
    return;  // was never prepared
  }
  const turn mine(*this, claim.uid);
  const std::optional<prepared_claim> before = find(claim.uid);
  try {
    unmake(claim.uid, before ? before->domain : domain_of(claim.uid));
    if (before) {
      drop(claim.uid);
    }
  } catch (const error& failure) {
    throw failure.in("unprepare claim", to_string(claim));
  }
}

std::size_t claims::size() const {
  const std::lock_guard lock(mutex_);
  return state_.claims.size();
}

std::map<std::string, std::string> claims::troubles() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> by_device;
  for (const auto& [uid, text] : troubles_) {
    const auto found = state_.claims.find(uid);
    if (found != state_.claims.end()) {
      for (const prepared_device& each : found->second.devices) {
        by_device.emplace(each.device, text);
      }
    }
  }
  return by_device;
}

}  // namespace gpushm::dra
