// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/busy_names.hpp"
#include "kubernetes/dra/claims/allocation.hpp"
#include "kubernetes/dra/claims/checkpoint.hpp"
#include "kubernetes/dra/claims/claim.hpp"
#include "kubernetes/dra/claims/claim_document.hpp"
#include "kubernetes/dra/claims/cluster.hpp"
#include "kubernetes/dra/claims/domains.hpp"

namespace gpushm::dra {

struct claims_options {
  result_owner owner;  ///< this driver, and the node's name as the pool
  std::string cdi_directory;
  std::string state_directory;
  std::string boot_id;
  /// To wait for another call for the same claim. Below the 45 s of a kubelet's call, which then
  /// gets the error.
  std::chrono::milliseconds timeout{30'000};
  std::optional<cdi::ipc_files> ipc = {};  ///< without them, claims with the parameter ipc fail
};

/// The claims that are prepared on this node: each has a domain, a CDI document and an entry in the
/// checkpoint, created in this order and removed in this order. If the process exits at any point,
///   - without the entry, the kubelet has received no reply and retries: domain and document are
///     removed at the next start;
///   - with the entry, the claim is considered prepared: the next start recreates domain and
///     document, which are removed when the kubelet unprepares the claim (again), or by the sweep.
///
/// Thread-safety: shared objects: safe. Calls for one claim are serialized; those for different
/// claims only wait for each other to write the checkpoint.
class claims {
 public:
  /// `api`, `through` and `opened` are not owned.
  claims(claims_options options, resource_api& api, cluster& through, domains& opened);

  /// Loads the checkpoint, opens its domains, writes missing documents, and removes domains and
  /// documents that are not in the checkpoint. After a reboot, first drops claims that no longer
  /// exist, if the API server is reachable. A domain that cannot be opened is not an error but is
  /// reported by `problems`. Must be called before all other functions, and again after a failure.
  /// Returns lines to log. Throws `error`: address_in_use while another process holds the state,
  /// and those of `checkpoint_file`.
  std::vector<std::string> restore();

  /// Blocks for at most `timeout` while other calls use the claim, then for writing files and,
  /// unless `is_prepared`, for at most one request to the API server. Idempotent. A claim that is
  /// not `is_prepared` but in the checkpoint is returned from there if the API server is
  /// unreachable. Throws `error`: timed_out if another call used the claim until `timeout`; any
  /// other leaves nothing of a claim that was not prepared before.
  prepared_claim prepare(const claim_reference& claim);
  /// Whether `prepare` needs no API server: the claim was prepared since the last boot of the
  /// machine, and no sweep has found another allocation since. The UID identifies the allocation: a
  /// kubelet unprepares a claim before it uses another one. Does not block.
  [[nodiscard]] bool is_prepared(const claim_reference& claim) const;
  /// Blocks as `prepare`, but does not use the API server. For a claim that is not prepared, only
  /// removes leftovers. Does not need a broker (errc::broker_unreachable of `domains`): the sweep
  /// closes the domain later. Throws `error`; the call can then be retried.
  void unprepare(const claim_reference& claim);

  struct sweep_result {
    std::vector<std::string> freed;  ///< "namespace/name" of claims, names of domains and documents
    std::string failure;             ///< why not everything was checked; empty: none
  };
  /// With `ask_server`, which takes one request for each claim, unprepares claims that were deleted
  /// or replaced by another claim of the same name, or were not allocated to this node in two
  /// successive such sweeps. Removes domains and documents without a claim; retries opening domains
  /// that could not be opened. Keeps claims whose state the API server did not report, and those
  /// that another call uses for longer than `timeout`, with a failure.
  ///
  /// A claim that is allocated but not reserved stays, and an unallocated one stays until the next
  /// sweep: after a forced deletion of its pod, the controller removes reservation and allocation
  /// while the pod is still terminating on this node, and the claim may be allocated to another pod
  /// of this node. The kubelet does not prepare it again, because it considers it prepared.
  sweep_result sweep(bool ask_server = true);

  [[nodiscard]] std::size_t size() const;
  /// The reasons by device why claims with the device currently cannot use their domain.
  [[nodiscard]] std::map<std::string, std::string> problems() const;

 private:
  /// Gives exclusive use of a claim. Blocks while another call uses it; after `timeout`, throws
  /// `error` (timed_out) with this operation and object.
  [[nodiscard]] base::busy_names::hold take(const std::string& uid,
                                            std::string_view operation,
                                            std::string_view object);

  [[nodiscard]] nlohmann::json fetch(const claim_reference& claim);
  /// Returns nullopt if the API server did not report the claim's state and `has_entry`: the entry
  /// in the checkpoint then applies.
  [[nodiscard]] std::optional<prepared_claim> allocation_of(const claim_reference& claim,
                                                            bool has_entry);
  void create(const prepared_claim& claim);
  void remove(const std::string& uid, const std::string& domain);
  /// Rolls back a failed preparation.
  void undo(const prepared_claim& claim);
  void store(const prepared_claim& claim);
  void drop(const std::string& uid);
  [[nodiscard]] std::optional<prepared_claim> find(const std::string& uid) const;
  [[nodiscard]] std::vector<prepared_claim> all() const;
  /// Returns why it failed; empty: success.
  std::string reopen(const prepared_claim& claim);
  void drop_claims_ended_by_reboot(std::vector<std::string>& notes);
  void save_restored(const checkpoint& checkpoint, std::vector<std::string>& notes);
  [[nodiscard]] claim_use query_use(const prepared_claim& claim);
  [[nodiscard]] bool should_free(const prepared_claim& claim);
  [[nodiscard]] bool has_other_allocation(const nlohmann::json& object,
                                          const prepared_claim& claim) const;
  void remove_orphans(std::vector<std::string>& freed);

  const claims_options options_;
  resource_api& api_;
  cluster& through_;
  domains& domains_;
  const claim_documents documents_;

  base::busy_names busy_;  // UIDs of claims
  mutable std::mutex mutex_;
  std::unique_ptr<checkpoint_file> file_;
  checkpoint state_;
  std::map<std::string, std::string> problems_;  ///< by UID
  std::set<std::string> unallocated_;            ///< UIDs of the last sweep
  std::set<std::string> unconfirmed_;            ///< UIDs whose entries may be outdated
};

}  // namespace gpushm::dra
