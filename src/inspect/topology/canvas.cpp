// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/canvas.hpp"

#include "base/text.hpp"

namespace gpushm::inspect {

namespace {

std::string escaped(std::string_view text) {
  std::string all;
  for (const char c : text) {
    switch (c) {
      case '&':
        all += "&amp;";
        break;
      case '<':
        all += "&lt;";
        break;
      case '>':
        all += "&gt;";
        break;
      case '"':
        all += "&quot;";
        break;
      default:
        all += c;
    }
  }
  return all;
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
  return std::to_string(x) + "," + std::to_string(y) + " ";
}

void canvas::rectangle(int x, int y, int w, int h, std::string_view attributes) {
  body_ += "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
           std::to_string(w) + "\" height=\"" + std::to_string(h) + "\" " +
           std::string(attributes) + "/>\n";
}

void canvas::line(const std::string& points, std::string_view color, int thickness, bool dashed) {
  body_ += R"(<polyline points=")" + points + R"(" fill="none" stroke=")" + std::string(color) +
           R"(" stroke-width=")" + std::to_string(thickness) + R"(")" +
           (dashed ? R"( stroke-dasharray="5 4")" : "") + " stroke-linejoin=\"round\"/>\n";
}

void canvas::text(int x, int y, std::string_view words, const style_of_text& style) {
  body_ += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" font-size=\"" +
           std::to_string(style.size) + "\" text-anchor=\"" + std::string(style.anchor) +
           "\" fill=\"" + std::string(style.color) + "\"" +
           (style.bold ? " font-weight=\"600\"" : "") + ">" + escaped(words) + "</text>\n";
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
  const std::string w = std::to_string(width);
  const std::string h = std::to_string(height);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
         "width=\"" +
         w + "\" height=\"" + h + "\" viewBox=\"0 0 " + w + " " + h +
         "\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', "
         "'DejaVu Sans', Arial, sans-serif\">\n<title>GPU topology</title>\n<rect width=\"100%\" "
         "height=\"100%\" fill=\"#ffffff\"/>\n" +
         body_ + "</svg>\n";
}

}  // namespace gpushm::inspect
