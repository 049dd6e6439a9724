// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/topology/canvas.hpp"
#include "inspect/topology/topology.hpp"

namespace gpushm::inspect {

// The box of a GPU in the SVG picture.

constexpr int box_width = 200;
/// Maximum number of segments shown in one box.
constexpr std::size_t max_chips = 4;

struct chip {
  std::string name;
  std::string size;
};

/// The content of one box.
struct content {
  std::string title;
  std::string badge;
  std::vector<std::string> lines;
  std::vector<chip> slices;
  std::vector<chip> chips;
  std::string problem;

  [[nodiscard]] int height() const;
};

[[nodiscard]] content content_of(const topology& topology, std::size_t index);
void draw_box(canvas& canvas, const content& content, int x, int top, int height);

/// Joins the parts that are not empty.
[[nodiscard]] std::string joined(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace gpushm::inspect
