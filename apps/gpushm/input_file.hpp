// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// At most `max_bytes`, and one more, of standard input.
[[nodiscard]] std::string read_standard_input(std::size_t max_bytes);

/// The contents of a file that the user named; "-": standard input. Throws `error`:
/// message_too_large (more than `max_bytes`; `next_step` says what to do), and what
/// `base::throw_errno` throws.
[[nodiscard]] std::string read_input(std::string_view operation,
                                     const std::string& file,
                                     std::size_t max_bytes,
                                     std::string_view next_step);

}  // namespace gpushm::cli
