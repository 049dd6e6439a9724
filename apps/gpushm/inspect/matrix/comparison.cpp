// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/comparison.hpp"

#include <algorithm>

namespace gpushm::cli::matrix {

std::vector<compared_row> compare(const published_table& table, const matrix_result& all) {
  std::vector<compared_row> rows;
  for (const published_row& published : table.rows) {
    const int number = row_number_of(table, published);
    const auto measured =
        std::find_if(all.rows.begin(), all.rows.end(), [&](const row_result& each) {
          return each.setting.number == number;
        });
    if (measured == all.rows.end()) {
      continue;
    }
    compared_row& made = rows.emplace_back();
    made.measured = &*measured;
    made.published = published.failure.empty() ? "success" : published.failure;
    for (const cell& each : measured->cells) {
      if (each.how != inspect::way::raw_legacy) {
        continue;
      }
      made.raw = &each;
      if (each.ran()) {
        made.here = each.state == cell_state::works ? "success" : runtime_words(each.failure);
      }
    }
  }
  return rows;
}

std::vector<std::string> verdict_of(const std::vector<compared_row>& rows) {
  std::size_t ran = 0;
  std::vector<std::string> lines{{}};
  for (const compared_row& each : rows) {
    ran += each.here.empty() ? 0U : 1U;
    if (each.differs()) {
      lines.push_back("Row " + std::to_string(each.measured->setting.number) +
                      " differs: published is \"" + each.published + "\", here it is \"" +
                      each.here + "\": " + each.raw->why + ".");
    }
  }
  const std::size_t differ = lines.size() - 1;
  lines.front() = std::to_string(ran) + " of " + std::to_string(rows.size()) + " rows ran" +
                  (ran == 0      ? "."
                   : differ == 0 ? ", all as published."
                                 : ", " + std::to_string(differ) + " not as published.");
  return lines;
}

}  // namespace gpushm::cli::matrix
