// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/fuzz/session_script.hpp"

namespace gpushm_fuzz {

struct attachable {
  gpushm::base::unique_fd fd;
  bool is_accepted = false;  ///< what the broker must decide
};

/// A descriptor of one of many kinds, mostly one that can be registered. No other descriptor refers
/// to its file, unless all files of its kind are the same.
[[nodiscard]] attachable some_file(script& script);

/// A name of a registered descriptor, or nearly one.
[[nodiscard]] std::string some_number(script& script);

/// A reservation of a registered descriptor, mostly one that the broker accepts. `generations`:
/// those that the broker returned.
[[nodiscard]] gpushm::wire::reserve some_registration(
    script& script, const std::vector<gpushm::generation>& generations);

}  // namespace gpushm_fuzz
