// SPDX-License-Identifier: Apache-2.0
// Myers' algorithm: the shortest edit script, by how far each diagonal reaches with one more
// difference.
#include "apps/gpushm-oci-runtime/text_diff.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpushm::oci_runtime {

namespace {

using lines = std::vector<std::string_view>;

lines lines_of(std::string_view text) {
  lines lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1);
    lines.push_back(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return lines;
}

/// A line of the result, with the number of lines of both texts before it.
struct step {
  char mark = ' ';
  std::ptrdiff_t before = 0;
  std::ptrdiff_t after = 0;
  std::string_view line;
};

/// The number of lines of the first text that each diagonal has passed.
class frontier {
 public:
  explicit frontier(std::ptrdiff_t widest)
      : offset_(widest + 1), reached_(static_cast<std::size_t>(2 * widest + 3), 0) {}
  std::ptrdiff_t& at(std::ptrdiff_t diagonal) {
    return reached_[static_cast<std::size_t>(diagonal + offset_)];
  }
  /// A copy of the diagonals up to `widest` and their neighbours.
  [[nodiscard]] frontier part(std::ptrdiff_t widest) {
    frontier copy(widest);
    for (std::ptrdiff_t diagonal = -widest - 1; diagonal <= widest + 1; ++diagonal) {
      copy.at(diagonal) = at(diagonal);
    }
    return copy;
  }

 private:
  std::ptrdiff_t offset_;
  std::vector<std::ptrdiff_t> reached_;
};

class comparison {
 public:
  comparison(lines before, lines after) : before_(std::move(before)), after_(std::move(after)) {}

  std::vector<step> steps() {
    const auto most = size(before_) + size(after_);
    frontier reached(most);
    std::vector<frontier> history;
    for (std::ptrdiff_t count = 0; count <= most; ++count) {
      history.push_back(reached.part(count));
      if (advance(reached, count)) {
        break;
      }
    }
    return walk_back(history);
  }

 private:
  static std::ptrdiff_t size(const lines& lines) {
    return static_cast<std::ptrdiff_t>(lines.size());
  }
  [[nodiscard]] bool equal(std::ptrdiff_t x, std::ptrdiff_t y) const {
    return before_[static_cast<std::size_t>(x)] == after_[static_cast<std::size_t>(y)];
  }
  // Whether a line of `after` is the better next difference on this diagonal.
  static bool goes_down(frontier& reached, std::ptrdiff_t diagonal, std::ptrdiff_t count) {
    return diagonal == -count ||
           (diagonal != count && reached.at(diagonal - 1) < reached.at(diagonal + 1));
  }

  bool advance(frontier& reached, std::ptrdiff_t count) const {
    for (std::ptrdiff_t diagonal = -count; diagonal <= count; diagonal += 2) {
      std::ptrdiff_t x = goes_down(reached, diagonal, count) ? reached.at(diagonal + 1)
                                                             : reached.at(diagonal - 1) + 1;
      while (x < size(before_) && x - diagonal < size(after_) && equal(x, x - diagonal)) {
        ++x;
      }
      reached.at(diagonal) = x;
      if (x >= size(before_) && x - diagonal >= size(after_)) {
        return true;
      }
    }
    return false;
  }

  std::vector<step> walk_back(std::vector<frontier>& history) const {
    std::vector<step> back;
    std::ptrdiff_t x = size(before_);
    std::ptrdiff_t y = size(after_);
    for (auto count = static_cast<std::ptrdiff_t>(history.size()) - 1; count >= 0; --count) {
      auto& reached = history[static_cast<std::size_t>(count)];
      const std::ptrdiff_t diagonal = x - y;
      const bool down = goes_down(reached, diagonal, count);
      const std::ptrdiff_t first = down ? diagonal + 1 : diagonal - 1;
      const std::ptrdiff_t old_x = count == 0 ? 0 : reached.at(first);
      const std::ptrdiff_t old_y = count == 0 ? 0 : old_x - first;
      while (x > old_x && y > old_y) {
        --x;
        --y;
        back.push_back({' ', x, y, before_[static_cast<std::size_t>(x)]});
      }
      if (count > 0) {
        x = old_x;
        y = old_y;
        back.push_back(down ? step{'+', x, y, after_[static_cast<std::size_t>(y)]}
                            : step{'-', x, y, before_[static_cast<std::size_t>(x)]});
      }
    }
    std::reverse(back.begin(), back.end());
    return back;
  }

  lines before_;
  lines after_;
};

// "12,3"; an empty range names the line before it.
std::string range(std::ptrdiff_t start, std::ptrdiff_t count) {
  const std::ptrdiff_t first = count == 0 ? start : start + 1;
  return count == 1 ? std::to_string(first) : fmt::format("{},{}", first, count);
}

void add_hunk(std::string& out, const step* first, const step* last) {
  const auto count_without = [&](char without) {
    return std::count_if(first, last, [&](const step& each) { return each.mark != without; });
  };
  out += fmt::format("@@ -{} +{} @@\n",
                     range(first->before, count_without('+')),
                     range(first->after, count_without('-')));
  for (; first != last; ++first) {
    out += first->mark;
    out += first->line;
    out += first->line.ends_with('\n') ? "" : "\n\\ No newline at end of file\n";
  }
}

}  // namespace

std::string unified_diff(std::string_view before,
                         std::string_view after,
                         std::string_view before_name,
                         std::string_view after_name) {
  constexpr std::size_t context = 3;
  if (before == after) {
    return {};
  }
  const auto steps = comparison(lines_of(before), lines_of(after)).steps();
  std::string out = fmt::format("--- {}\n+++ {}\n", before_name, after_name);
  const auto next_change = [&](std::size_t first) {
    while (first < steps.size() && steps[first].mark == ' ') {
      ++first;
    }
    return first;
  };
  for (std::size_t change = next_change(0); change < steps.size();) {
    const std::size_t first = change - std::min(change, context);
    std::size_t end = change;
    // Changes whose contexts touch share a hunk.
    while (change < steps.size() && change <= end + 2 * context) {
      end = change + 1;
      change = next_change(end);
    }
    const std::size_t last = std::min(end + context, steps.size());
    add_hunk(out, &steps[first], &steps[0] + last);
  }
  return out;
}

}  // namespace gpushm::oci_runtime
