// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "succession/descriptor_store/shared_memory.hpp"
#include "succession/descriptor_store/shared_state.hpp"
#include "succession/descriptor_store/stored_descriptors.hpp"
#include "succession/keeper/keeper.hpp"

namespace gpushm::keeper {

/// A keeper, as its worker sees it.
struct worker_context {
  const keeper_options& options;
  shared_state& shared;
  stored_descriptors& stored;
  const sigset_t& signals;          ///< handled, and blocked in this thread
  const sigset_t& original_mask;    ///< for the program
  const std::vector<int>& foreign;  ///< open descriptors of this process that are not the keeper's
  int guard;                        ///< a pidfd
};

/// Does all of a keeper's work. Returns the keeper's exit
/// status (`keeper::run`), or nothing once the guard has died. Throws `error`: system_error.
[[nodiscard]] std::optional<int> work(const worker_context& context);

}  // namespace gpushm::keeper
