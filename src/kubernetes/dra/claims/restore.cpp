// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <utility>

#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/claims.hpp"

namespace gpushm::dra {

std::vector<std::string> claims::restore() {
  std::vector<std::string> notes;
  if (!file_) {
    file_ = std::make_unique<checkpoint_file>(options_.state_directory);
  }
  std::string warning;
  const checkpoint checkpoint = file_->load(warning);
  if (!warning.empty()) {
    notes.push_back(warning);
  }
  {
    const std::lock_guard lock(mutex_);
    state_ = checkpoint;
    state_.boot_id = options_.boot_id;
    unconfirmed_.clear();
  }
  if (!checkpoint.boot_id.empty() && checkpoint.boot_id != options_.boot_id) {
    drop_claims_ended_by_reboot(notes);
  }
  for (const prepared_claim& claim : all()) {
    if (const std::string failure = reopen(claim); !failure.empty()) {
      notes.push_back(failure);
    }
  }
  std::vector<std::string> freed;
  try {
    remove_orphans(freed);
  } catch (const error& failure) {
    notes.emplace_back(failure.what());
  }
  for (const std::string& each : freed) {
    notes.push_back(fmt::format("freed {}, which is not in the checkpoint", each));
  }
  save_restored(checkpoint, notes);
  return notes;
}

void claims::drop_claims_ended_by_reboot(std::vector<std::string>& notes) {
  // Containers and directories of the previous boot no longer exist, but their claims may, and
  // their pods restart. If the server does not reply, the domain is opened, which is harmless; the
  // sweep checks again.
  {
    // They may be allocated again, to pods that the kubelet has not started yet.
    const std::lock_guard lock(mutex_);
    for (const auto& [uid, claim] : state_.claims) {
      unconfirmed_.insert(uid);
    }
  }
  for (const prepared_claim& claim : all()) {
    try {
      if (query_use(claim) != claim_use::in_use) {
        {
          const std::lock_guard lock(mutex_);
          state_.claims.erase(claim.claim.uid);
          unconfirmed_.erase(claim.claim.uid);
        }
        notes.push_back(fmt::format("dropped claim {}, which ended with the previous boot",
                                    to_string(claim.claim)));
      }
    } catch (const error& failure) {
      notes.emplace_back(failure.what());
      return;
    }
  }
}

std::string claims::reopen(const prepared_claim& claim) {
  try {
    create(claim);
  } catch (const error& failure) {
    std::string text = failure.in("open claim again", to_string(claim.claim)).what();
    const std::lock_guard lock(mutex_);
    problems_.insert_or_assign(claim.claim.uid, text);
    return text;
  }
  return {};
}

void claims::save_restored(const checkpoint& checkpoint, std::vector<std::string>& notes) {
  const std::lock_guard lock(mutex_);
  if (state_ == checkpoint) {
    return;
  }
  try {
    file_->save(state_);
  } catch (const error& failure) {
    // Prepared claims can still be used and unprepared; preparing more will report the error.
    notes.emplace_back(failure.what());
  }
}

}  // namespace gpushm::dra
