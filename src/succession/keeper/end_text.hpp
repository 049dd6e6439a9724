// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/process/memory_limit.hpp"

namespace gpushm::keeper {

/// How a process has ended, by the `status` of waitpid(2): "has ended with status 1", "has ended
/// with signal 11 (SIGSEGV)". Nothing shows a lack of memory but SIGKILL, so that text has `memory`
/// of the container, if it is known. Throws std::bad_alloc.
[[nodiscard]] std::string end_text(int status, const std::optional<base::container_memory>& memory);

/// With the memory of this process's container, which it reads. Throws std::bad_alloc.
[[nodiscard]] std::string end_text(int status);

}  // namespace gpushm::keeper
