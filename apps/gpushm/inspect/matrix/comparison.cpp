// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/comparison.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace gpushm::cli::matrix {

std::vector<compared_row> compare(const published_table& table, const matrix_result& matrix) {
  std::vector<compared_row> rows;
  for (const published_row& published : table.rows) {
    const int number = row_number_of(table, published);
    const auto measured =
        std::find_if(matrix.rows.begin(), matrix.rows.end(), [&](const row_result& each) {
          return each.setting.number == number;
        });
    if (measured == matrix.rows.end()) {
      continue;
    }
    compared_row& row = rows.emplace_back();
    row.measured = &*measured;
    row.published = published.failure.empty() ? "success" : published.failure;
    for (const cell& each : measured->cells) {
      if (each.how != inspect::way::raw_legacy) {
        continue;
      }
      row.raw = &each;
      if (each.ran()) {
        row.here = each.state == cell_state::works ? "success" : runtime_words(each.failure);
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
      lines.push_back(fmt::format(R"(Row {} differs: published is "{}", here it is "{}": {}.)",
                                  each.measured->setting.number,
                                  each.published,
                                  each.here,
                                  each.raw->why));
    }
  }
  const std::size_t differ = lines.size() - 1;
  lines.front() = fmt::format("{} of {} rows ran{}",
                              ran,
                              rows.size(),
                              ran == 0      ? "."
                              : differ == 0 ? ", all as published."
                                            : fmt::format(", {} not as published.", differ));
  return lines;
}

}  // namespace gpushm::cli::matrix
