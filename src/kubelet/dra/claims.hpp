// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kubelet/dra/allocation.hpp"
#include "kubelet/dra/checkpoint.hpp"
#include "kubelet/dra/claim.hpp"
#include "kubelet/dra/claim_document.hpp"
#include "kubelet/dra/cluster.hpp"
#include "kubelet/dra/domains.hpp"

namespace gpushm::dra {

struct claims_options {
  result_owner owner;  ///< this driver, and the node's name as the pool
  std::string cdi_directory;
  std::string state_directory;
  std::string boot_id;
};

/// The claims that are prepared on this node: each has a domain, a CDI document and an entry in the
/// checkpoint, made in this order and removed in this order. Whatever the moment at which the
/// process dies,
///   - without the entry the kubelet has had no answer, and it asks again: domain and document are
///     left behind and go at the next start;
///   - with the entry the claim counts as prepared: the next start makes domain and document again,
///     and they go when the kubelet asks to unprepare (again), or with the sweep.
///
/// Shared objects: safe. Calls for one claim wait for each other, those for different claims do
/// not, but for the writing of the checkpoint.
class claims {
 public:
  /// `api`, `through` and `opened` are not owned.
  claims(claims_options options, resource_api& api, cluster& through, domains& opened);

  /// Takes the checkpoint, opens its domains, writes its documents where they are missing, and
  /// removes domains and documents that are in no checkpoint. After a reboot claims that are gone
  /// are dropped first, if the API server can be asked. A domain that cannot be opened is no error
  /// but a `trouble`. To be called before all else, again when it failed. What to log. Throws
  /// `error`: address_in_use while another process has the state, that of `checkpoint_file`.
  std::vector<std::string> restore();

  /// Blocks, at most for a request to the API server and writing files. Again: the same. While the
  /// API server cannot be reached a prepared claim is answered from the checkpoint. Throws `error`;
  /// then nothing is left of a claim that was not prepared before.
  prepared_claim prepare(const claim_reference& claim);
  /// Needs no API server; nothing for a claim that is not prepared but what was left behind of it.
  /// Throws `error`; then it can be tried again.
  void unprepare(const claim_reference& claim);

  struct sweep_result {
    std::vector<std::string> freed;  ///< "namespace/name" of claims, names of domains and documents
    std::string failure;             ///< why not everything could be looked at; empty: it was
  };
  /// Unprepares claims that are gone, are other claims of the same name, or have not been allocated
  /// to this node in the sweep before, either; removes domains and documents without a claim; opens
  /// domains that could not be opened before. Nothing is removed that the API server cannot be
  /// asked about.
  ///
  /// A claim that is allocated but not reserved stays, and one that is not allocated does until the
  /// next sweep: when its pod was deleted by force the controller takes reservation and allocation
  /// away while the pod still ends here, and the claim may be allocated to another pod of this
  /// node. Its kubelet does not ask for it again, since for it the claim still is prepared.
  sweep_result sweep();

  [[nodiscard]] std::size_t size() const;
  /// By device: why claims that have it cannot use their domain now.
  [[nodiscard]] std::map<std::string, std::string> troubles() const;

 private:
  /// While it lives nobody else works on that claim.
  class turn;

  [[nodiscard]] nlohmann::json fetch(const claim_reference& claim);
  [[nodiscard]] prepared_claim allocation_of(const claim_reference& claim,
                                             const std::optional<prepared_claim>& before);
  void make(const prepared_claim& claim);
  void unmake(const std::string& uid, const std::string& domain);
  /// Takes a preparation that failed back.
  void undo(const prepared_claim& claim);
  void store(const prepared_claim& claim);
  void drop(const std::string& uid);
  [[nodiscard]] std::optional<prepared_claim> find(const std::string& uid) const;
  [[nodiscard]] std::vector<prepared_claim> all() const;
  /// Why it could not; empty: it could.
  std::string open_again(const prepared_claim& claim);
  void drop_what_a_reboot_ended(std::vector<std::string>& notes);
  void save_as_restored(const checkpoint& found, std::vector<std::string>& notes);
  [[nodiscard]] claim_use ask_use(const claim_reference& claim);
  [[nodiscard]] bool is_to_be_freed(const claim_reference& claim);
  void remove_left_behind(std::vector<std::string>& freed);

  const claims_options options_;
  resource_api& api_;
  cluster& through_;
  domains& domains_;
  const claim_documents documents_;

  mutable std::mutex mutex_;
  std::condition_variable turn_over_;
  std::set<std::string> busy_;
  std::unique_ptr<checkpoint_file> file_;
  checkpoint state_;
  std::map<std::string, std::string> troubles_;  ///< by UID
  std::set<std::string> unallocated_;            ///< in the last sweep
};

}  // namespace gpushm::dra
