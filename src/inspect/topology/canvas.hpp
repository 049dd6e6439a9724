// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::inspect {

constexpr std::string_view text_color = "#1f2430";
constexpr std::string_view dim_color = "#5c6470";

struct style_of_text {
  int size = 12;
  std::string_view anchor = "start";
  std::string_view color = text_color;
  bool bold = false;
};

/// An upper estimate of the width in pixels, for any font.
[[nodiscard]] double text_width(std::string_view text, const style_of_text& style);
/// Truncates `text` to `pixels` and marks the cut with "…"; removes control characters.
[[nodiscard]] std::string fitted(std::string text, const style_of_text& style, double pixels);
/// As `fitted`, but removes the middle, because names of segments differ at their ends.
[[nodiscard]] std::string shortened(const std::string& text,
                                    const style_of_text& style,
                                    double pixels);
/// "x,y ", for the points of a line.
[[nodiscard]] std::string point(int x, int y);

/// Writes elements of an SVG picture; escapes texts. Units are pixels. Thread-safety: distinct
/// objects: safe; shared objects: unsafe.
class canvas {
 public:
  void rectangle(int x, int y, int w, int h, std::string_view attributes);
  void line(const std::string& points, std::string_view color, int thickness, bool dashed);
  /// `y`: the baseline.
  void text(int x, int y, std::string_view words, const style_of_text& style = {});
  /// Centred at `x` on a white background, on top of a line at `y`.
  void label(int x, int y, const std::string& words, const style_of_text& style);
  [[nodiscard]] std::string document(int width, int height) const;

 private:
  std::string body_;
};

}  // namespace gpushm::inspect
