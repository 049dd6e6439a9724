// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kubernetes/dra/claims/claim.hpp"

namespace gpushm::dra {

/// Identifies this driver's results: a claim may also have results of other drivers.
struct result_owner {
  std::string driver;
  std::string pool;
};

/// The domain of a claim ("claim-<uid>").
[[nodiscard]] std::string domain_of(const std::string& claim_uid);
/// The UID of the claim that the domain belongs to; empty for other domains.
[[nodiscard]] std::string claim_uid_of(const std::string& domain);

/// Returns the devices of this driver that the ResourceClaim `object` allocates to `claim`, with
/// their CDI device names. The parts read are the same in all versions since v1beta1. Throws
/// `error`: gone_or_replaced when the object is another claim of the same name, invalid_argument
/// when it is not allocated or has no device of this driver, protocol_error when it is not a
/// ResourceClaim.
[[nodiscard]] prepared_claim read_allocation(const nlohmann::json& object,
                                             const claim_reference& claim,
                                             const result_owner& owner);

enum class claim_use {
  in_use,       ///< the claim, with devices of this driver
  unallocated,  ///< the claim, without devices of this driver
  gone          ///< another claim of the same name
};
/// The state of `claim` according to the API server's `object`. Reservations are ignored: the pod
/// of a forcibly removed reservation may still run. Throws `error` (protocol_error) when the object
/// is not a ResourceClaim: the state is then unknown.
[[nodiscard]] claim_use use_of(const nlohmann::json& object,
                               const claim_reference& claim,
                               const result_owner& owner);

}  // namespace gpushm::dra
