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

void draw_stack(canvas& to,
                int x,
                int& y,
                const std::vector<chip>& chips,
                std::string_view attributes,
                std::string_view color) {
  constexpr int wide = box_width - 2 * box_padding;
  const style_of_text name{11, "start", color};
  const style_of_text size{11, "end", color};
  for (const chip& each : chips) {
    to.rectangle(x, y, wide, chip_height, attributes);
    const double left = wide - 24 - text_width(each.size, size);
    to.text(x + 8, y + 14, shortened(each.name, name, left), name);
    if (!each.size.empty()) {
      to.text(x + wide - 8, y + 14, each.size, size);
    }
    y += chip_height + chip_gap;
  }
}

}  // namespace

int content::height() const {
  int all = box_padding + 20 + static_cast<int>(lines.size()) * 16;
  all += problem.empty() ? 0 : 18;
  const auto stacked = static_cast<int>(slices.size() + chips.size());
  all += stacked == 0 ? 0 : 8 + stacked * (chip_height + chip_gap);
  all += slices.empty() || chips.empty() ? 0 : 6;
  return all + box_padding - 4;
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string all;
  for (const std::string& each : parts) {
    if (!each.empty()) {
      all += (all.empty() ? "" : std::string(separator)) + each;
    }
  }
  return all;
}

content content_of(const topology& all, std::size_t index) {
  const gpu_facts& gpu = all.machine.gpus[index];
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
  const measured_pair* local = measured_of(all, index, index);
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
  box.chips = chips_of(segments_of(all, index));
  if (gpu.open_error.value_or(0) != 0) {
    box.problem = "cannot be opened here";
  }
  return box;
}

void draw_box(canvas& to, const content& what, int x, int top, int height) {
  to.rectangle(x,
               top,
               box_width,
               height,
               what.problem.empty()
                   ? R"(rx="8" fill="#ffffff" stroke="#4a5160" stroke-width="1.5")"
                   : R"(rx="8" fill="#f3f4f6" stroke="#9aa1ac" stroke-width="1.5" )"
                     R"(stroke-dasharray="5 4")");
  constexpr int wide = box_width - 2 * box_padding;
  const int left = x + box_padding;
  int y = top + box_padding + 12;
  const style_of_text title{15, "start", text_color, true};
  const style_of_text badge{11, "end", "#7a4b00", true};
  to.text(left, y, what.title, title);
  if (!what.badge.empty()) {
    to.text(x + box_width - box_padding,
            y,
            fitted(what.badge, badge, wide - text_width(what.title, title) - 6),
            badge);
  }
  y += 8;
  for (std::size_t i = 0; i < what.lines.size(); ++i) {
    const style_of_text style{i == 0 ? 12 : 11, "start", i == 0 ? text_color : dim_color};
    y += 16;
    to.text(left, y - 4, fitted(what.lines[i], style, wide), style);
  }
  if (!what.problem.empty()) {
    y += 18;
    const style_of_text style{11, "start", "#a12622", true};
    to.text(left, y - 5, fitted(what.problem, style, wide), style);
  }
  y += 8;
  draw_stack(to, left, y, what.slices, R"(rx="3" fill="#e6edfb" stroke="#6f93d8")", "#20407a");
  y += what.slices.empty() || what.chips.empty() ? 0 : 6;
  draw_stack(to, left, y, what.chips, R"(rx="10" fill="#fff2d8" stroke="#d9a441")", "#5f4300");
}

}  // namespace gpushm::inspect
