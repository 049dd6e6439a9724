// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/canvas.hpp"

#include <fmt/core.h>

#include "base/text/text.hpp"

namespace gpushm::inspect {

namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace

double text_width(std::string_view text, const style_of_text& style) {
  double ems = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    ems += byte < 0x80 ? 0.6 : (byte & 0xC0U) == 0xC0U ? 1.0 : 0.0;
  }
  return ems * style.size * (style.bold ? 1.08 : 1);
}

std::string fitted(std::string text, const style_of_text& style, double pixels) {
  constexpr std::string_view dots = "\xe2\x80\xa6";
  text = base::printable(text);
  if (text_width(text, style) <= pixels) {
    return text;
  }
  while (!text.empty() && text_width(text + std::string(dots), style) > pixels) {
    do {
      text.pop_back();
    } while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0x80U);
    // The lead byte of a truncated character.
    if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0xC0U) {
      text.pop_back();
    }
  }
  return text + std::string(dots);
}

std::string shortened(const std::string& text, const style_of_text& style, double pixels) {
  if (text_width(text, style) <= pixels) {
    return text;
  }
  std::size_t back = text.size();
  const double for_back = pixels * 2 / 3;
  while (back > 0 && text_width(std::string_view(text).substr(back - 1), style) <= for_back) {
    --back;
  }
  while (back < text.size() && (static_cast<unsigned char>(text[back]) & 0xC0U) == 0x80U) {
    ++back;
  }
  const std::string end = text.substr(back);
  return fitted(text, style, pixels - text_width(end, style)) + end;
}

std::string point(int x, int y) {
  return fmt::format("{},{} ", x, y);
}

void canvas::rectangle(int x, int y, int w, int h, std::string_view attributes) {
  body_ += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>\n", x, y, w, h, attributes);
}

void canvas::line(const std::string& points, std::string_view color, int thickness, bool dashed) {
  body_ += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{} "
      "stroke-linejoin=\"round\"/>\n",
      points,
      color,
      thickness,
      dashed ? R"( stroke-dasharray="5 4")" : "");
}

void canvas::text(int x, int y, std::string_view words, const style_of_text& style) {
  body_ += fmt::format(
      "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n",
      x,
      y,
      style.size,
      style.anchor,
      style.color,
      style.bold ? " font-weight=\"600\"" : "",
      escaped(words));
}

void canvas::label(int x, int y, const std::string& words, const style_of_text& style) {
  if (words.empty()) {
    return;
  }
  const int wide = static_cast<int>(text_width(words, style)) + 10;
  rectangle(x - wide / 2, y - 9, wide, 18, R"(fill="#ffffff" rx="4")");
  text(x, y + 4, words, style);
}

std::string canvas::document(int width, int height) const {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"system-ui, "
      "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif\">\n"
      "<title>GPU topology</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "{2}</svg>\n",
      width,
      height,
      body_);
}

}  // namespace gpushm::inspect
