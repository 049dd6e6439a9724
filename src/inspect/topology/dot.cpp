// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "inspect/topology/model.hpp"

namespace gpushm::inspect {

namespace {

constexpr std::size_t max_segments = 6;

/// Escapes text for a quoted DOT string. The caller adds DOT's line breaks, "\n".
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : base::printable(text)) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result;
}

std::string node(const topology& topology, std::size_t index) {
  const gpu_facts& gpu = topology.machine.gpus[index];
  std::string label = fmt::format("GPU {}\\n{}", index, escaped(gpu_name(gpu)));
  if (gpu_bytes(gpu) > 0) {
    label += "\\n" + base::size_text(gpu_bytes(gpu));
  }
  if (!gpu.pci_address.empty()) {
    label += "\\n" + escaped(short_address(gpu.pci_address));
  }
  if (!gpu.sharing.empty() && gpu.sharing != "full") {
    label += "\\n" + escaped(sharing_text(gpu));
  }
  if (gpu.nvml) {
    for (const mig_instance_view& each : gpu.nvml->mig_instances) {
      label += fmt::format("\\n[{}]", escaped(instance_name(each)));
    }
  }
  const auto own = segments_of(topology, index);
  for (std::size_t i = 0; i < own.size() && i < max_segments; ++i) {
    label += fmt::format("\\n{}, {}", escaped(own[i]->name), base::size_text(own[i]->size_bytes));
  }
  if (own.size() > max_segments) {
    label += fmt::format("\\n+{} more", own.size() - max_segments);
  }
  return fmt::format(
      "gpu{} [label=\"{}\"{}];\n", index, label, open_problem(gpu).empty() ? "" : ", style=dashed");
}

std::string link_label(const topology& topology, const pair_facts& pair) {
  std::string label = fmt::format("NV{}", pair.links);
  if (pair.link_bytes_per_second > 0) {
    label += " " + rate_text(pair.link_bytes_per_second);
  }
  const measured_pair* measured = measured_of(topology, pair.from, pair.to);
  if (!pair.through_switch && measured != nullptr && measured->bytes_per_second > 0) {
    label += "\\nmeasured " + rate_text(measured->bytes_per_second);
  }
  return label;
}

std::string edges(const topology& topology) {
  const facts& machine = topology.machine;
  const bool switched = is_switched(machine);
  std::string text;
  if (switched) {
    text += "  nvswitch [label=\"NVSwitch\", shape=box, style=filled, fillcolor=\"#d7ecc0\"];\n";
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      for (const pair_facts& pair : machine.pairs) {
        if (pair.from == i && pair.to != i && pair.to < machine.gpus.size() && pair.links > 0) {
          text +=
              fmt::format("  nvswitch -- gpu{} [label=\"{}\", penwidth=3, color=\"#4e8a12\"];\n",
                          i,
                          link_label(topology, pair));
          break;
        }
      }
    }
  }
  for (const pair_facts& pair : machine.pairs) {
    if (pair.from >= pair.to || pair.to >= machine.gpus.size() || (switched && pair.links > 0)) {
      continue;
    }
    const bool linked = pair.links > 0;
    text +=
        fmt::format("  gpu{} -- gpu{} [label=\"{}\", {}];\n",
                    pair.from,
                    pair.to,
                    linked ? link_label(topology, pair) : escaped(pair.pcie_distance),
                    linked ? R"(penwidth=3, color="#4e8a12")" : R"(style=dashed, color="#80868f")");
  }
  return text;
}

}  // namespace

std::string topology_dot(const topology& topology) {
  std::string text = "graph topology {\n  graph [fontname=\"sans-serif\", label=\"" +
                     escaped(driver_text(topology.machine)) +
                     "\"];\n  node [shape=box, fontname=\"sans-serif\"];\n"
                     "  edge [fontname=\"sans-serif\", fontsize=10];\n";
  if (topology.machine.gpus.empty()) {
    return fmt::format(
        "{}  none [label=\"{}\"];\n}}\n", text, escaped(no_gpu_text(topology.machine)));
  }
  for (const gpu_group& group : numa_groups(topology.machine)) {
    const bool known = group.numa_node >= 0;
    if (known) {
      text += fmt::format("  subgraph cluster_numa{0} {{\n    label=\"NUMA node {0}\";\n",
                          group.numa_node);
    }
    for (const std::size_t gpu : group.gpus) {
      text += (known ? "    " : "  ") + node(topology, gpu);
    }
    text += known ? "  }\n" : "";
  }
  return text + edges(topology) + "}\n";
}

}  // namespace gpushm::inspect
