// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/claims.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* sweep_operation = "sweep claim";
constexpr const char* orphan_operation = "remove leftovers of claim";

}  // namespace

bool claims::has_other_allocation(const nlohmann::json& object, const prepared_claim& claim) const {
  try {
    return read_allocation(object, claim.claim, options_.owner) != claim;
  } catch (const error&) {
    return true;
  }
}

claim_use claims::query_use(const prepared_claim& claim) {
  try {
    const nlohmann::json object = fetch(claim.claim);
    const claim_use use = use_of(object, claim.claim, options_.owner);
    if (use == claim_use::in_use && has_other_allocation(object, claim)) {
      const std::lock_guard lock(mutex_);
      unconfirmed_.insert(claim.claim.uid);
    }
    return use;
  } catch (const api_client::api_error& failure) {
    // A 404 from a proxy, or from a server that does not serve this API version, is not evidence
    // about the claim.
    if (failure.object_is_missing(claim.claim.name)) {
      return claim_use::gone;
    }
    throw;
  }
}

bool claims::should_free(const prepared_claim& claim) {
  const claim_use use = query_use(claim);
  const std::lock_guard lock(mutex_);
  if (use == claim_use::unallocated && unallocated_.insert(claim.claim.uid).second) {
    return false;
  }
  if (use == claim_use::in_use) {
    unallocated_.erase(claim.claim.uid);
  }
  return use != claim_use::in_use;
}

claims::sweep_result claims::sweep(bool ask_server) {
  sweep_result result;
  if (ask_server) {
    api_.invalidate();
  }
  for (const prepared_claim& seen : all()) {
    base::busy_names::hold taken;
    try {
      taken = take(seen.claim.uid, sweep_operation, to_string(seen.claim));
    } catch (const error& failure) {
      result.failure = failure.what();
      continue;
    }
    const std::optional<prepared_claim> claim = find(seen.claim.uid);
    if (!claim) {
      continue;
    }
    try {
      if (ask_server && should_free(*claim)) {
        remove(claim->claim.uid, claim->domain);
        drop(claim->claim.uid);
        result.freed.push_back(to_string(claim->claim));
      } else if (const std::string failure = reopen(*claim); !failure.empty()) {
        result.failure = failure;
      }
    } catch (const error& failure) {
      result.failure = failure.in(sweep_operation, to_string(claim->claim)).what();
      // The other claims would wait as long for the same failure.
      if (failure.code() == errc::peer_unreachable || failure.code() == errc::timed_out) {
        return result;
      }
    }
  }
  try {
    remove_orphans(result.freed);
  } catch (const error& failure) {
    result.failure = failure.in("sweep claims", options_.owner.pool).what();
  }
  return result;
}

void claims::remove_orphans(std::vector<std::string>& freed) {
  for (const std::string& uid : documents_.unfinished()) {
    const base::busy_names::hold taken = take(uid, orphan_operation, uid);
    documents_.remove_unfinished(uid);
  }
  std::vector<std::string> uids = documents_.list();
  for (const std::string& domain : domains_.list()) {
    if (std::string uid = claim_uid_of(domain); !uid.empty()) {
      uids.push_back(std::move(uid));
    }
  }
  std::sort(uids.begin(), uids.end());
  uids.erase(std::unique(uids.begin(), uids.end()), uids.end());
  for (const std::string& uid : uids) {
    if (!may_be_uid(uid) || find(uid)) {
      continue;  // not created by this driver, or prepared
    }
    // A claim that is being prepared is in the checkpoint once its hold ends.
    const base::busy_names::hold taken = take(uid, orphan_operation, uid);
    if (!find(uid)) {
      remove(uid, domain_of(uid));
      freed.push_back(domain_of(uid));
    }
  }
}

}  // namespace gpushm::dra
