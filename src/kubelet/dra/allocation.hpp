// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kubelet/dra/claim.hpp"

namespace gpushm::dra {

/// Whose results count: a claim may have results of other drivers too.
struct result_owner {
  std::string driver;
  std::string pool;
};

/// The domain of a claim ("claim-<uid>").
[[nodiscard]] std::string domain_of(const std::string& claim_uid);
/// The claim whose domain it is; empty when it is no claim's.
[[nodiscard]] std::string claim_uid_of(const std::string& domain);

/// What the ResourceClaim `object` (of any version that has been served since v1beta1: the parts
/// read here are the same) gives of our devices to `claim`, with the names of their CDI devices.
/// Throws `error`: gone_or_replaced when the object is another claim of the same name,
/// invalid_argument when it is not allocated or nothing of ours is in it, protocol_error when it is
/// no ResourceClaim.
[[nodiscard]] prepared_claim read_allocation(const nlohmann::json& object,
                                             const claim_reference& claim,
                                             const result_owner& owner);

enum class claim_use {
  in_use,       ///< it is the claim, and allocated to us
  unallocated,  ///< it is the claim, and has nothing of ours
  gone          ///< it is another claim of the same name
};
/// What has become of `claim`, of which the API server says `object`. Whether a pod has reserved it
/// says nothing: the pod of a reservation that was taken back by force may still run. Throws
/// `error` (protocol_error) when it is no ResourceClaim: then nothing is known.
[[nodiscard]] claim_use use_of(const nlohmann::json& object,
                               const claim_reference& claim,
                               const result_owner& owner);

}  // namespace gpushm::dra
