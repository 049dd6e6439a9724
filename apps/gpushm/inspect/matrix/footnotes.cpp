// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/footnotes.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace gpushm::cli::matrix {

std::string footnotes::mark(const cell& cell) {
  const std::string text = explanation_of(cell);
  if (text.empty()) {
    return {};
  }
  auto found = std::find(texts_.begin(), texts_.end(), text);
  if (found == texts_.end()) {
    found = texts_.insert(texts_.end(), text);
  }
  return letters(static_cast<std::size_t>(found - texts_.begin()));
}

std::string footnotes::letters(std::size_t index) {
  std::string text(1, static_cast<char>('a' + index % 26));
  return index < 26 ? text : letters(index / 26 - 1) + text;
}

std::string mismatch_of(const cell& cell) {
  const inspect::prediction& predicted = *cell.predicted;
  std::string text = fmt::format("predicted \"{}\" because {}. Actual result: {}",
                                 predicted.works ? "works" : predicted.failure,
                                 predicted.why,
                                 to_string(cell.state));
  if (cell.state != cell_state::works) {
    text += fmt::format(" ({}, {}): {}", cell.side, cell.failure, cell.text);
  }
  return text;
}

std::string explanation_of(const cell& cell) {
  if (!cell.ran()) {
    return cell.why;
  }
  if (!cell.as_predicted()) {
    return "NOT AS PREDICTED: " + mismatch_of(cell);
  }
  if (cell.state == cell_state::works) {
    return cell.why;
  }
  std::string text = fmt::format("{}: {}", cell.failure, cell.why);
  if (!cell.predicted->remedy.empty()) {
    text += ". Remedy: " + cell.predicted->remedy;
  }
  return text;
}

}  // namespace gpushm::cli::matrix
