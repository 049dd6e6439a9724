// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "protocol/wire/messages.hpp"

namespace gpushm::wire::samples {

struct sample {
  const char* name;
  wire::message message;
};

/// One message of each kind whose fields all differ from their defaults and from each other. The
/// encoded messages are committed in tests/data/wire/: never change one, append new ones.
[[nodiscard]] std::vector<sample> one_of_each_kind();

/// Messages with fields at their limits and empty fields.
[[nodiscard]] std::vector<sample> at_the_limits();

/// Messages that differ from valid ones in one list or enumerator, which is one past its limit.
[[nodiscard]] std::vector<sample> past_the_limits();

}  // namespace gpushm::wire::samples
