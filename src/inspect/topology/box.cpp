// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/box.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "inspect/topology/model.hpp"

namespace gpushm::inspect {

namespace {

constexpr int box_padding = 12;
constexpr int chip_height = 20;
constexpr int chip_gap = 4;

std::vector<chip> chips_of(const std::vector<const open_segment*>& segments) {
  std::vector<chip> chips;
  const std::size_t shown = segments.size() > max_chips ? max_chips - 1 : segments.size();
  for (std::size_t i = 0; i < shown; ++i) {
    chips.push_back({base::printable(segments[i]->name), base::size_text(segments[i]->size_bytes)});
  }
  if (segments.size() > shown) {
    chips.push_back({fmt::format("+{} more", segments.size() - shown), ""});
  }
  return chips;
}

void draw_stack(canvas& canvas,
                int x,
                int& y,
                const std::vector<chip>& chips,
                std::string_view attributes,
                std::string_view color) {
  constexpr int wide = box_width - 2 * box_padding;
  const style_of_text name{11, "start", color};
  const style_of_text size{11, "end", color};
  for (const chip& each : chips) {
    canvas.rectangle(x, y, wide, chip_height, attributes);
    const double left = wide - 24 - text_width(each.size, size);
    canvas.text(x + 8, y + 14, shortened(each.name, name, left), name);
    if (!each.size.empty()) {
      canvas.text(x + wide - 8, y + 14, each.size, size);
    }
    y += chip_height + chip_gap;
  }
}

}  // namespace

int content::height() const {
  int result = box_padding + 20 + static_cast<int>(lines.size()) * 16;
  result += problem.empty() ? 0 : 18;
  const auto stacked = static_cast<int>(slices.size() + chips.size());
  result += stacked == 0 ? 0 : 8 + stacked * (chip_height + chip_gap);
  result += slices.empty() || chips.empty() ? 0 : 6;
  return result + box_padding - 4;
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& each : parts) {
    if (!each.empty()) {
      text += (text.empty() ? "" : std::string(separator)) + each;
    }
  }
  return text;
}

content content_of(const topology& topology, std::size_t index) {
  const gpu_facts& gpu = topology.machine.gpus[index];
  content box;
  box.title = fmt::format("GPU {}", index);
  box.badge = gpu.sharing.empty() || gpu.sharing == "full" ? "" : sharing_text(gpu);
  box.lines.push_back(gpu_name(gpu));
  const std::string compute = compute_text(gpu);
  box.lines.push_back(joined({gpu_bytes(gpu) == 0 ? "" : base::size_text(gpu_bytes(gpu)),
                              compute.empty() ? "" : "cc " + compute,
                              gpu.cuda.empty() || gpu.cuda[0].multiprocessors < 0
                                  ? ""
                                  : fmt::format("{} SMs", gpu.cuda[0].multiprocessors)},
                             ", "));
  box.lines.push_back(
      joined({short_address(gpu.pci_address), base::printable(gpu.uuid.substr(0, 12))}, "  "));
  const measured_pair* local = measured_of(topology, index, index);
  if (local != nullptr && local->bytes_per_second > 0) {
    box.lines.push_back("own memory " + rate_text(local->bytes_per_second));
  }
  box.lines.erase(std::remove(box.lines.begin(), box.lines.end(), ""), box.lines.end());
  if (gpu.nvml) {
    for (const mig_instance_view& each : gpu.nvml->mig_instances) {
      box.slices.push_back(
          {instance_name(each), each.total_bytes == 0 ? "" : base::size_text(each.total_bytes)});
    }
  }
  box.chips = chips_of(segments_of(topology, index));
  if (gpu.open_error.value_or(0) != 0) {
    box.problem = "cannot be opened here";
  }
  return box;
}

void draw_box(canvas& canvas, const content& content, int x, int top, int height) {
  canvas.rectangle(x,
                   top,
                   box_width,
                   height,
                   content.problem.empty()
                       ? R"(rx="8" fill="#ffffff" stroke="#4a5160" stroke-width="1.5")"
                       : R"(rx="8" fill="#f3f4f6" stroke="#9aa1ac" stroke-width="1.5" )"
                         R"(stroke-dasharray="5 4")");
  constexpr int wide = box_width - 2 * box_padding;
  const int left = x + box_padding;
  int y = top + box_padding + 12;
  const style_of_text title{15, "start", text_color, true};
  const style_of_text badge{11, "end", "#7a4b00", true};
  canvas.text(left, y, content.title, title);
  if (!content.badge.empty()) {
    canvas.text(x + box_width - box_padding,
                y,
                fitted(content.badge, badge, wide - text_width(content.title, title) - 6),
                badge);
  }
  y += 8;
  for (std::size_t i = 0; i < content.lines.size(); ++i) {
    const style_of_text style{i == 0 ? 12 : 11, "start", i == 0 ? text_color : dim_color};
    y += 16;
    canvas.text(left, y - 4, fitted(content.lines[i], style, wide), style);
  }
  if (!content.problem.empty()) {
    y += 18;
    const style_of_text style{11, "start", "#a12622", true};
    canvas.text(left, y - 5, fitted(content.problem, style, wide), style);
  }
  y += 8;
  draw_stack(
      canvas, left, y, content.slices, R"(rx="3" fill="#e6edfb" stroke="#6f93d8")", "#20407a");
  y += content.slices.empty() || content.chips.empty() ? 0 : 6;
  draw_stack(
      canvas, left, y, content.chips, R"(rx="10" fill="#fff2d8" stroke="#d9a441")", "#5f4300");
}

}  // namespace gpushm::inspect
