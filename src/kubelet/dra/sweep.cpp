// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpushm/error.hpp"
#include "kubelet/dra/claims.hpp"
#include "kubelet/dra/turn.hpp"

namespace gpushm::dra {

claim_use claims::ask_use(const claim_reference& claim) {
  try {
    return use_of(fetch(claim), claim, options_.owner);
  } catch (const kube::api_error& failure) {
    // A 404 from a proxy, or from a server that does not serve this API version, is not evidence
    // about the claim.
    if (failure.object_is_missing(claim.name)) {
      return claim_use::gone;
    }
    throw;
  }
}

bool claims::is_to_be_freed(const claim_reference& claim) {
  const claim_use use = ask_use(claim);
  const std::lock_guard lock(mutex_);
  if (use == claim_use::unallocated && unallocated_.insert(claim.uid).second) {
    return false;
  }
  if (use == claim_use::in_use) {
    unallocated_.erase(claim.uid);
  }
  return use != claim_use::in_use;
}

claims::sweep_result claims::sweep() {
  sweep_result result;
  api_.forget();
  for (const prepared_claim& seen : all()) {
    const turn mine(*this, seen.claim.uid);
    const std::optional<prepared_claim> claim = find(seen.claim.uid);
    if (!claim) {
      continue;
    }
    try {
      if (is_to_be_freed(claim->claim)) {
        unmake(claim->claim.uid, claim->domain);
        drop(claim->claim.uid);
        result.freed.push_back(to_string(claim->claim));
      } else if (const std::string failure = open_again(*claim); !failure.empty()) {
        result.failure = failure;
      }
    } catch (const error& failure) {
      result.failure = failure.in("sweep claim", to_string(claim->claim)).what();
      // The other claims would wait as long for the same failure.
      if (failure.code() == errc::peer_unreachable || failure.code() == errc::timed_out) {
        return result;
      }
    }
  }
  try {
    remove_left_behind(result.freed);
  } catch (const error& failure) {
    result.failure = failure.in("sweep claims", options_.owner.pool).what();
  }
  return result;
}

void claims::remove_left_behind(std::vector<std::string>& freed) {
  for (const std::string& uid : documents_.unfinished()) {
    const turn mine(*this, uid);
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
    if (!may_be_uid(uid)) {
      continue;  // not created by this driver
    }
    // A claim that is being prepared is in the checkpoint when its turn ends.
    const turn mine(*this, uid);
    if (!find(uid)) {
      unmake(uid, domain_of(uid));
      freed.push_back(domain_of(uid));
    }
  }
}

}  // namespace gpushm::dra
