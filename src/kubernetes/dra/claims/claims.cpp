// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/claims.hpp"

#include <fmt/core.h>

#include <utility>

#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* prepare_operation = "prepare claim";
constexpr const char* unprepare_operation = "unprepare claim";

/// Whether the server reported that the claim does not exist or is not allocated here, as opposed
/// to being unreachable.
bool is_definite(const error& failure, const claim_reference& claim) {
  if (const auto* reply = dynamic_cast<const api_client::api_error*>(&failure)) {
    return reply->object_is_missing(claim.name);
  }
  return failure.code() == errc::gone_or_replaced || failure.code() == errc::invalid_argument;
}

}  // namespace

claims::claims(claims_options options, resource_api& api, cluster& through, domains& opened)
    : options_(std::move(options)),
      api_(api),
      through_(through),
      domains_(opened),
      documents_(options_.cdi_directory, options_.ipc) {}

nlohmann::json claims::fetch(const claim_reference& claim) {
  const auto request = [&] {
    return through_.get(
        api_.path(fmt::format("/namespaces/{}/resourceclaims/{}", claim.name_space, claim.name)));
  };
  const std::string requested_version = api_.version();
  try {
    return request();
  } catch (const api_client::api_error& failure) {
    // Also the reply of a server that no longer serves this API version.
    if (!failure.not_found()) {
      throw;
    }
    api_.invalidate();
    if (api_.version() == requested_version) {
      throw;
    }
  }
  return request();
}

std::optional<prepared_claim> claims::allocation_of(const claim_reference& claim, bool has_entry) {
  try {
    return read_allocation(fetch(claim), claim, options_.owner);
  } catch (const error& failure) {
    const bool definite = is_definite(failure, claim);
    if (has_entry && !definite) {
      return std::nullopt;
    }
    const bool got_reply = dynamic_cast<const api_client::api_error*>(&failure) != nullptr;
    if (got_reply && definite) {
      throw error(errc::gone_or_replaced,
                  prepare_operation,
                  to_string(claim),
                  "the claim no longer exists on the API server",
                  "pods that use it cannot start until it is recreated");
    }
    if (definite || (!got_reply && failure.code() == errc::protocol_error)) {
      throw;
    }
    throw failure.in(prepare_operation, to_string(claim));
  }
}

void claims::create(const prepared_claim& claim) {
  const std::string directory = domains_.open(claim.domain);
  documents_.write(claim, directory);
  const std::lock_guard lock(mutex_);
  problems_.erase(claim.claim.uid);
}

void claims::remove(const std::string& uid, const std::string& domain) {
  documents_.remove(uid);
  try {
    domains_.close(domain);
  } catch (const error& failure) {
    // Pods must be able to end on a node whose broker is away: nothing serves the domain. Should a
    // next broker continue it, the sweep closes it.
    if (failure.code() != errc::broker_unreachable) {
      throw;
    }
    base::log(
        log_level::warning,
        fmt::format("domain {} is closed once its broker is back: {}", domain, failure.what()));
  }
  const std::lock_guard lock(mutex_);
  problems_.erase(uid);
}

void claims::undo(const prepared_claim& claim) {
  // The sweep removes what remains; the caller receives the original failure.
  const auto ignore_errors = [](const auto& step) {
    try {
      step();
    } catch (const error& failure) {
      base::log(log_level::warning, failure.what());
    }
  };
  ignore_errors([&] { documents_.remove(claim.claim.uid); });
  ignore_errors([&] { domains_.close(claim.domain); });
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
  unconfirmed_.erase(uid);
}

std::optional<prepared_claim> claims::find(const std::string& uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = state_.claims.find(uid);
  return found != state_.claims.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<prepared_claim> claims::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<prepared_claim> result;
  result.reserve(state_.claims.size());
  for (const auto& [uid, claim] : state_.claims) {
    result.push_back(claim);
  }
  return result;
}

base::busy_names::hold claims::take(const std::string& uid,
                                    std::string_view operation,
                                    std::string_view object) {
  base::busy_names::hold taken = busy_.take(uid, base::deadline_after(options_.timeout));
  if (!taken) {
    throw error(errc::timed_out,
                operation,
                object,
                fmt::format("another call for the claim with UID {} has not ended within {} ms",
                            uid,
                            options_.timeout.count()),
                "it will be tried again; see the log of gpushmd if this lasts");
  }
  return taken;
}

prepared_claim claims::prepare(const claim_reference& claim) {
  check(claim);
  const base::busy_names::hold taken = take(claim.uid, prepare_operation, to_string(claim));
  const std::optional<prepared_claim> before = find(claim.uid);
  const std::optional<prepared_claim> replied =
      is_prepared(claim) ? std::nullopt : allocation_of(claim, before.has_value());
  prepared_claim allocated = replied ? *replied : before.value();
  try {
    create(allocated);
    if (before != allocated) {
      store(allocated);
    }
    if (replied) {
      const std::lock_guard lock(mutex_);
      unconfirmed_.erase(claim.uid);
    }
  } catch (const error& failure) {
    if (!before) {
      undo(allocated);
    }
    throw failure.in(prepare_operation, to_string(claim));
  }
  return allocated;
}

bool claims::is_prepared(const claim_reference& claim) const {
  const std::lock_guard lock(mutex_);
  const auto found = state_.claims.find(claim.uid);
  return found != state_.claims.end() && found->second.claim == claim &&
         !unconfirmed_.contains(claim.uid);
}

void claims::unprepare(const claim_reference& claim) {
  if (!may_be_uid(claim.uid)) {
    return;  // was never prepared
  }
  const base::busy_names::hold taken = take(claim.uid, unprepare_operation, to_string(claim));
  const std::optional<prepared_claim> before = find(claim.uid);
  try {
    remove(claim.uid, before ? before->domain : domain_of(claim.uid));
    if (before) {
      drop(claim.uid);
    }
  } catch (const error& failure) {
    throw failure.in(unprepare_operation, to_string(claim));
  }
}

std::size_t claims::size() const {
  const std::lock_guard lock(mutex_);
  return state_.claims.size();
}

std::map<std::string, std::string> claims::problems() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> by_device;
  for (const auto& [uid, text] : problems_) {
    const auto claim = state_.claims.find(uid);
    if (claim != state_.claims.end()) {
      for (const prepared_device& each : claim->second.devices) {
        by_device.emplace(each.device, text);
      }
    }
  }
  return by_device;
}

}  // namespace gpushm::dra
