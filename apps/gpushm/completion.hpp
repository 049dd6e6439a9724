// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/command_table.hpp"

namespace gpushm::cli {

/// What a shell offers for the last one of `words`, the words after the program's name: each line
/// of the result is a word, or a word, a tab and its description. A first line ":files" or
/// ":directories" stands for the files that the shell itself finds. Names of segments are those of
/// the broker that the command would use, which has half a second to answer.
[[nodiscard]] std::string completions(const std::vector<command_entry>& table,
                                      const std::vector<std::string>& words);

}  // namespace gpushm::cli
