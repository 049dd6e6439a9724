// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "inspect/topology/box.hpp"
#include "inspect/topology/canvas.hpp"
#include "inspect/topology/model.hpp"

namespace gpushm::inspect {

namespace {

// Pixels. GPUs are in one row, grouped by NUMA node; NVLinks are above them, PCIe below.
constexpr int margin = 28;
constexpr int box_gap = 22;
constexpr int group_padding = 16;
constexpr int group_gap = 28;
constexpr int group_title = 26;
constexpr int lane_height = 26;
/// Maximum number of GPUs for which pairs without NVLinks get a line; more lines would hide
/// everything else.
constexpr std::size_t max_paired = 4;

constexpr std::string_view link_color = "#4e8a12";
constexpr std::string_view pcie_color = "#80868f";
/// A line between two GPUs. Lines in the same lane do not overlap.
struct edge {
  std::size_t from = 0;
  std::size_t to = 0;
  bool dashed = false;
  std::string label;
  int lane = 0;
};

std::string measured_text(const topology& topology, const pair_facts& pair) {
  const measured_pair* link = measured_of(topology, pair.from, pair.to);
  const measured_pair* other = measured_of(topology, pair.to, pair.from);
  double slowest = 0;
  for (const measured_pair* each : {link, other}) {
    if (each != nullptr && each->bytes_per_second > 0) {
      slowest = slowest > 0 ? std::min(slowest, each->bytes_per_second) : each->bytes_per_second;
    }
  }
  return slowest > 0 ? "measured " + rate_text(slowest) : "";
}

/// The first of `candidates` that fits, else the last one truncated.
std::string best_label(const std::vector<std::string>& candidates,
                       const style_of_text& style,
                       double pixels) {
  for (const std::string& each : candidates) {
    if (text_width(each, style) <= pixels) {
      return each;
    }
  }
  return fitted(candidates.back(), style, pixels);
}

class picture {
 public:
  explicit picture(const topology& topology)
      : all_(topology), switched_(is_switched(topology.machine)) {}

  std::string draw() {
    if (all_.machine.gpus.empty()) {
      return draw_nothing();
    }
    place_boxes();
    make_edges();
    draw_header();
    int top = header_height();
    const int links_bottom = top + links_height();
    boxes_top_ = links_bottom + group_title + group_padding;
    draw_groups(links_bottom);
    draw_links(links_bottom);
    draw_pcie();
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      draw_box(to_, contents_[i], lefts_[i], boxes_top_, box_height_);
    }
    return to_.document(width_, draw_footer());
  }

 private:
  [[nodiscard]] static int header_height() { return margin + 44; }
  [[nodiscard]] int links_height() const {
    return switched_ ? 76 : over_lanes_ == 0 ? 0 : over_lanes_ * lane_height + 14;
  }
  /// With only two GPUs there is space between them for a complete description of their link.
  [[nodiscard]] int gap() const { return lefts_.size() == 2 ? 92 : box_gap; }
  [[nodiscard]] int middle(std::size_t gpu) const { return lefts_[gpu] + box_width / 2; }
  [[nodiscard]] int boxes_bottom() const { return boxes_top_ + box_height_; }
  [[nodiscard]] int groups_bottom() const { return boxes_bottom() + group_padding; }

  std::string draw_nothing() {
    width_ = 640;
    draw_header();
    to_.rectangle(margin,
                  header_height(),
                  width_ - 2 * margin,
                  70,
                  R"(rx="8" fill="#f3f4f6" stroke="#9aa1ac" stroke-dasharray="5 4")");
    const style_of_text style{14, "middle", dim_color};
    to_.text(width_ / 2,
             header_height() + 40,
             fitted(no_gpu_text(all_.machine), style, width_ - 2 * margin - 24),
             style);
    return to_.document(width_, header_height() + 70 + margin);
  }

  void draw_header() {
    const style_of_text style{13, "start", dim_color};
    to_.text(margin, margin + 10, "GPU topology", {20, "start", text_color, true});
    to_.text(
        margin, margin + 30, fitted(driver_text(all_.machine), style, width_ - 2 * margin), style);
  }

  void place_boxes() {
    groups_ = numa_groups(all_.machine);
    lefts_.resize(all_.machine.gpus.size());
    int x = margin;
    for (const gpu_group& group : groups_) {
      x += group_padding;
      for (const std::size_t gpu : group.gpus) {
        lefts_[gpu] = x;
        x += box_width + gap();
      }
      x += group_padding - gap() + group_gap;
    }
    const int needed = x - group_gap + margin;
    width_ = std::max(needed, 560);
    for (int& each : lefts_) {
      each += (width_ - needed) / 2;
    }
    for (std::size_t i = 0; i < lefts_.size(); ++i) {
      contents_.push_back(content_of(all_, i));
      box_height_ = std::max(box_height_, contents_.back().height());
    }
  }

  // ---- lines ----

  void make_edges() {
    for (const pair_facts& pair : all_.machine.pairs) {
      if (pair.from >= pair.to || pair.to >= lefts_.size()) {
        continue;
      }
      if (pair.links > 0 && !switched_) {
        over_.push_back({pair.from, pair.to, false, link_text(pair), 0});
      } else if (pair.links == 0 && lefts_.size() <= max_paired) {
        under_.push_back({pair.from, pair.to, true, pcie_text(pair), 0});
      }
    }
    over_lanes_ = assign_lanes(over_);
    under_lanes_ = assign_lanes(under_);
  }

  /// Assigns lanes and returns their number: as few as possible, short lines nearest to the boxes;
  /// lines in one lane do not touch.
  int assign_lanes(std::vector<edge>& edges) const {
    std::stable_sort(edges.begin(), edges.end(), [&](const edge& a, const edge& b) {
      return span(a) != span(b) ? span(a) < span(b) : left(a) < left(b);
    });
    std::vector<std::vector<edge>> lanes;
    for (edge& each : edges) {
      const auto touches = [&](const edge& other) {
        return left(each) < right(other) + box_gap && left(other) < right(each) + box_gap;
      };
      std::size_t lane = 0;
      while (lane < lanes.size() && std::any_of(lanes[lane].begin(), lanes[lane].end(), touches)) {
        ++lane;
      }
      if (lane == lanes.size()) {
        lanes.emplace_back();
      }
      each.lane = static_cast<int>(lane);
      lanes[lane].push_back(each);
    }
    return static_cast<int>(lanes.size());
  }
  [[nodiscard]] int left(const edge& edge) const {
    return std::min(middle(edge.from), middle(edge.to));
  }
  [[nodiscard]] int right(const edge& edge) const {
    return std::max(middle(edge.from), middle(edge.to));
  }
  [[nodiscard]] int span(const edge& edge) const { return right(edge) - left(edge); }

  [[nodiscard]] std::string link_text(const pair_facts& pair) const {
    const std::string count = fmt::format("{} NVLink", pair.links) +
                              (pair.link_version > 0 ? fmt::format(" {}", pair.link_version) : "");
    const std::string brief = fmt::format("NV{}", pair.links);
    const std::string rate =
        pair.link_bytes_per_second > 0 ? rate_text(pair.link_bytes_per_second) : "";
    const std::string measured = measured_text(all_, pair);
    const int space = std::abs(middle(pair.from) - middle(pair.to)) - 70;
    return best_label({joined({count, rate, measured}, ", "),
                       joined({brief, rate, measured}, ", "),
                       joined({brief, measured.empty() ? rate : measured}, ", "),
                       joined({brief, rate}, ", "),
                       brief},
                      {11},
                      space);
  }

  [[nodiscard]] std::string pcie_text(const pair_facts& pair) const {
    const std::string path = pair.pcie_distance.empty() ? "PCIe" : "PCIe " + pair.pcie_distance;
    const std::string access = pair.access.value_or(true) ? "" : "no peer access";
    const std::string measured = measured_text(all_, pair);
    const int space = std::abs(middle(pair.from) - middle(pair.to)) - 70;
    return best_label({joined({path, access, measured}, ", "),
                       joined({path, access.empty() ? measured : access}, ", "),
                       path},
                      {11},
                      space);
  }

  /// The x coordinate at which an edge starts on its box, different for each edge of the box.
  [[nodiscard]] int attachment(const std::vector<edge>& edges,
                               const edge& link,
                               std::size_t gpu) const {
    std::vector<const edge*> here;
    for (const edge& each : edges) {
      if (each.from == gpu || each.to == gpu) {
        here.push_back(&each);
      }
    }
    const auto other_end = [&](const edge* each) {
      return middle(each->from == gpu ? each->to : each->from);
    };
    // Lines to the left start on the left, the longest in the middle, so that they do not cross.
    std::stable_sort(here.begin(), here.end(), [&](const edge* a, const edge* b) {
      const bool a_left = other_end(a) < middle(gpu);
      const bool b_left = other_end(b) < middle(gpu);
      if (a_left != b_left) {
        return a_left;
      }
      return a_left ? a->lane < b->lane : a->lane > b->lane;
    });
    const auto place = std::find_if(here.begin(), here.end(), [&](const edge* each) {
      return each->from == link.from && each->to == link.to;
    });
    const auto index = static_cast<int>(place - here.begin());
    const auto count = static_cast<int>(here.size());
    // To the right of the group's title, which is above the left half of its first box.
    const int step = std::min(24, 90 / std::max(count, 1));
    return middle(gpu) + 28 + index * step - (count - 1) * step / 2;
  }

  void draw_edges(const std::vector<edge>& edges, int from_y, int first_y, int direction) {
    const std::string_view color = direction < 0 ? link_color : pcie_color;
    for (const edge& each : edges) {
      const int y = first_y + direction * each.lane * lane_height;
      const int a = attachment(edges, each, each.from);
      const int b = attachment(edges, each, each.to);
      to_.line(point(a, from_y) + point(a, y) + point(b, y) + point(b, from_y),
               color,
               each.dashed ? 1 : 3,
               each.dashed);
    }
    // Drawn after all lines, so that no line crosses a label.
    for (const edge& each : edges) {
      const style_of_text style{11, "middle", direction < 0 ? "#2f5a06" : dim_color};
      to_.label(label_place(edges, each, text_width(each.label, style) / 2 + 7),
                first_y + direction * each.lane * lane_height,
                each.label,
                style);
    }
  }

  /// The middle of the line, or the nearest place where no vertical part of another line passes.
  [[nodiscard]] int label_place(const std::vector<edge>& edges,
                                const edge& link,
                                double half) const {
    const int a = attachment(edges, link, link.from);
    const int b = attachment(edges, link, link.to);
    const auto is_free = [&](int x) {
      return std::none_of(edges.begin(), edges.end(), [&](const edge& other) {
        const auto passes = [&](std::size_t gpu) {
          return std::abs(attachment(edges, other, gpu) - x) < half;
        };
        return other.lane > link.lane && (passes(other.from) || passes(other.to));
      });
    };
    constexpr int step = 8;
    for (int offset = 0; offset < std::abs(a - b) * 0.5 - half; offset += step) {
      for (const int x : {(a + b) / 2 + offset, (a + b) / 2 - offset}) {
        if (is_free(x)) {
          return x;
        }
      }
    }
    return (a + b) / 2;
  }

  void draw_links(int bottom) {
    if (switched_) {
      draw_switch(bottom);
    } else {
      draw_edges(over_, boxes_top_, bottom - 16, -1);
    }
  }

  [[nodiscard]] std::string switch_text() const {
    int fewest = std::numeric_limits<int>::max();
    int most = 0;
    const pair_facts* first = nullptr;
    double low = 0;
    double high = 0;
    for (const pair_facts& pair : all_.machine.pairs) {
      if (pair.from == pair.to || pair.links == 0 ||
          std::max(pair.from, pair.to) >= lefts_.size()) {
        continue;
      }
      first = first == nullptr ? &pair : first;
      fewest = std::min(fewest, pair.links);
      most = std::max(most, pair.links);
      const measured_pair* measured = measured_of(all_, pair.from, pair.to);
      if (measured != nullptr && measured->bytes_per_second > 0) {
        low = low > 0 ? std::min(low, measured->bytes_per_second) : measured->bytes_per_second;
        high = std::max(high, measured->bytes_per_second);
      }
    }
    const std::string count =
        fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most);
    const std::string kind =
        (most == 1 ? " NVLink" : " NVLinks") +
        (first->link_version > 0 ? fmt::format(" (generation {})", first->link_version) : "");
    const std::string rate = first->link_bytes_per_second > 0 && fewest == most
                                 ? rate_text(first->link_bytes_per_second) + " each way"
                                 : "";
    std::string measured = high > 0 ? "measured " + rate_text(low) : "";
    measured += high > low * 1.01 && low > 0 ? " to " + rate_text(high) : "";
    const int space = width_ - 2 * margin - 24;
    return best_label(
        {"NVSwitch: " + joined({count + kind + " per GPU", rate, measured}, ", "),
         "NVSwitch: " + joined({count + kind, measured.empty() ? rate : measured}, ", "),
         "NVSwitch"},
        {13, "middle", "", true},
        space);
  }

  void draw_switch(int bottom) {
    const int top = bottom - links_height();
    for (std::size_t i = 0; i < lefts_.size(); ++i) {
      const auto linked = [&](const pair_facts& pair) {
        return pair.from == i && pair.to != i && pair.links > 0;
      };
      if (std::any_of(all_.machine.pairs.begin(), all_.machine.pairs.end(), linked)) {
        to_.line(point(middle(i), top + 36) + point(middle(i), boxes_top_), link_color, 4, false);
      }
    }
    to_.rectangle(margin,
                  top + 4,
                  width_ - 2 * margin,
                  34,
                  R"(rx="8" fill="#dff0cb" stroke="#4e8a12" stroke-width="1.5")");
    to_.text(width_ / 2, top + 26, switch_text(), {13, "middle", "#2f5a06", true});
  }

  [[nodiscard]] bool has_bus() const {
    return lefts_.size() > max_paired && !has_links(all_.machine);
  }

  void draw_pcie() {
    draw_edges(under_, boxes_bottom(), groups_bottom() + 18, 1);
    if (has_bus()) {
      const int y = groups_bottom() + 26;
      for (std::size_t i = 0; i < lefts_.size(); ++i) {
        to_.line(point(middle(i), boxes_bottom()) + point(middle(i), y), pcie_color, 1, true);
      }
      to_.line(point(middle(0), y) + point(middle(lefts_.size() - 1), y), pcie_color, 1, true);
      to_.label(
          width_ / 2, y, "PCIe only: no NVLink between these GPUs", {11, "middle", dim_color});
    }
  }

  // ---- groups, legend ----

  void draw_groups(int top) {
    for (const gpu_group& group : groups_) {
      const int first = lefts_[group.gpus.front()];
      const int last = lefts_[group.gpus.back()] + box_width;
      to_.rectangle(first - group_padding,
                    top,
                    last - first + 2 * group_padding,
                    groups_bottom() - top,
                    R"(rx="12" fill="#eef2f8" stroke="#d3dbe7")");
      if (group.numa_node >= 0) {
        to_.text(first - group_padding + 12,
                 top + 22,
                 fmt::format("NUMA node {}", group.numa_node),
                 {12, "start", dim_color, true});
      }
    }
  }

  struct sample {
    std::string words;
    std::string attributes;  ///< of a rectangle; empty: a line
    bool dashed = false;
  };

  [[nodiscard]] std::vector<sample> legend() const {
    std::vector<sample> samples;
    if (has_links(all_.machine)) {
      samples.push_back({"NVLink, rate one way", "", false});
    }
    if (!under_.empty() || has_bus()) {
      samples.push_back({"PCIe only", "", true});
    }
    const auto any = [&](auto member) {
      return std::any_of(contents_.begin(), contents_.end(), [&](const content& each) {
        return !(each.*member).empty();
      });
    };
    if (any(&content::slices)) {
      samples.push_back({"MIG instance", R"(rx="3" fill="#e6edfb" stroke="#6f93d8")", false});
    }
    if (any(&content::chips) || !other_segments(all_).empty()) {
      samples.push_back({"open segment", R"(rx="7" fill="#fff2d8" stroke="#d9a441")", false});
    }
    if (any(&content::problem)) {
      samples.push_back({"GPU that cannot be opened here",
                         R"(rx="3" fill="#f3f4f6" stroke="#9aa1ac" stroke-dasharray="4 3")",
                         false});
    }
    return samples;
  }

  /// Draws the legend and the segments in host memory; returns the picture's height.
  int draw_footer() {
    int y = groups_bottom() + 24;
    y += under_lanes_ == 0 ? 0 : under_lanes_ * lane_height + 2;
    y += has_bus() ? 40 : 0;
    const auto others = other_segments(all_);
    if (!others.empty()) {
      std::vector<std::string> names;
      for (std::size_t i = 0; i < others.size() && i < max_chips; ++i) {
        names.push_back(fmt::format(
            "{} {}", base::printable(others[i]->name), base::size_text(others[i]->size_bytes)));
      }
      if (others.size() > max_chips) {
        names.push_back(fmt::format("+{} more", others.size() - max_chips));
      }
      const style_of_text style{12, "start", text_color};
      to_.text(
          margin,
          y + 4,
          fitted("Segments not on these GPUs: " + joined(names, ", "), style, width_ - 2 * margin),
          style);
      y += 26;
    }
    int x = margin;
    const style_of_text style{12, "start", dim_color};
    const auto samples = legend();
    for (const sample& each : samples) {
      const int wide = 38 + static_cast<int>(text_width(each.words, style)) + 22;
      if (x > margin && x + wide > width_ - margin) {
        x = margin;
        y += 22;
      }
      if (each.attributes.empty()) {
        to_.line(point(x, y) + point(x + 28, y),
                 each.dashed ? pcie_color : link_color,
                 each.dashed ? 1 : 3,
                 each.dashed);
      } else {
        to_.rectangle(x, y - 7, 28, 14, each.attributes);
      }
      to_.text(x + 38, y + 4, each.words, style);
      x += wide;
    }
    return y + (samples.empty() ? 0 : 14) + margin - 8;
  }

  const topology& all_;
  bool switched_;
  canvas to_;
  std::vector<gpu_group> groups_;
  std::vector<int> lefts_;
  std::vector<content> contents_;
  std::vector<edge> over_;
  std::vector<edge> under_;
  int over_lanes_ = 0;
  int under_lanes_ = 0;
  int width_ = 0;
  int box_height_ = 0;
  int boxes_top_ = 0;
};

}  // namespace

std::string topology_svg(const topology& topology) {
  return picture(topology).draw();
}

}  // namespace gpushm::inspect
