// SPDX-License-Identifier: Apache-2.0
#include "base/text/text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/topology/model.hpp"

namespace gpushm::inspect {

namespace {

/// Maximum GPUs per matrix row: more do not fit into 100 columns.
constexpr std::size_t matrix_columns = 8;
constexpr std::size_t max_segments = 20;
constexpr std::size_t name_columns = 28;

std::string text_of(const base::table& rows) {
  return rows.text(base::table::empty_columns::omitted);
}

std::string number_text(int value) {
  return value < 0 ? std::string() : std::to_string(value);
}
std::string flag_text(std::optional<bool> flag) {
  return !flag ? std::string() : *flag ? "on" : "off";
}
std::string bytes_text(std::uint64_t bytes) {
  return bytes == 0 ? std::string() : base::size_text(bytes);
}

std::string identities(const facts& facts) {
  base::table rows({{"GPU"}, {"NAME"}, {"UUID"}, {"PCI"}, {"NUMA"}});
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    const gpu_facts& gpu = facts.gpus[i];
    rows.add({std::to_string(i),
              base::shortened(gpu_name(gpu), name_columns),
              base::shortened(base::printable(gpu.uuid), 40),
              base::shortened(short_address(gpu.pci_address), 13),
              number_text(gpu.numa_node)});
  }
  return text_of(rows);
}

std::string handles_of(const gpu_facts& gpu) {
  if (gpu.cuda.empty()) {
    return {};
  }
  const cuda_gpu_view& cuda = gpu.cuda[0];
  std::string names = "ipc";
  names += cuda.vmm.value_or(false) && cuda.file_handles.value_or(false) ? " fd" : "";
  names += cuda.fabric_handles.value_or(false) ? " fabric" : "";
  names += cuda.pool_file_handles.value_or(false) ? " pool" : "";
  return names;
}

std::string clock_text(int nvml_mhz, int cuda_khz) {
  return nvml_mhz > 0   ? std::to_string(nvml_mhz)
         : cuda_khz > 0 ? std::to_string(cuda_khz / 1000)
                        : "";
}

std::vector<std::string> property_row(std::size_t index, const gpu_facts& gpu) {
  const cuda_gpu_view cuda = gpu.cuda.empty() ? cuda_gpu_view{} : gpu.cuda[0];
  const nvml_gpu_view nvml = gpu.nvml.value_or(nvml_gpu_view{});
  return {std::to_string(index),
          compute_text(gpu),
          bytes_text(gpu_bytes(gpu)),
          number_text(cuda.multiprocessors),
          bytes_text(cuda.l2_bytes),
          number_text(cuda.copy_engines),
          clock_text(nvml.max_sm_clock_mhz, cuda.clock_khz),
          clock_text(nvml.max_memory_clock_mhz, cuda.memory_clock_khz),
          flag_text(nvml.ecc ? nvml.ecc : cuda.ecc),
          flag_text(nvml.mig),
          sharing_text(gpu),
          handles_of(gpu)};
}

std::string properties(const facts& facts) {
  base::table rows({{"GPU"},
                    {"CC"},
                    {"MEMORY"},
                    {"SMS"},
                    {"L2"},
                    {"COPY"},
                    {"SM MHZ"},
                    {"MEM MHZ"},
                    {"ECC"},
                    {"MIG"},
                    {"SHARING"},
                    {"HANDLES"}});
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    rows.add(property_row(i, facts.gpus[i]));
  }
  return text_of(rows);
}

std::string instances(const facts& facts) {
  base::table rows({{"GPU"}, {"INSTANCE"}, {"MEMORY"}, {"UUID"}});
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    if (facts.gpus[i].nvml) {
      for (const mig_instance_view& each : facts.gpus[i].nvml->mig_instances) {
        rows.add({std::to_string(i),
                  base::shortened(instance_name(each), name_columns),
                  bytes_text(each.total_bytes),
                  base::shortened(base::printable(each.uuid), 46)});
      }
    }
  }
  return rows.empty() ? std::string() : "\n" + text_of(rows);
}

/// A matrix of the results of `cell`, at most `matrix_columns` GPUs wide.
template <typename Cell>
std::string matrix(const std::string& title, std::size_t count, Cell cell) {
  std::string text = fmt::format("\n{}\n", title);
  for (std::size_t first = 0; first < count; first += matrix_columns) {
    const std::size_t end = std::min(count, first + matrix_columns);
    std::vector<base::table::column> columns{{""}};
    for (std::size_t to = first; to < end; ++to) {
      columns.push_back({fmt::format("GPU{}", to)});
    }
    base::table rows(std::move(columns));
    for (std::size_t from = 0; from < count; ++from) {
      std::vector<std::string> cells{fmt::format("GPU{}", from)};
      for (std::size_t to = first; to < end; ++to) {
        cells.push_back(cell(from, to));
      }
      rows.add(std::move(cells));
    }
    text += text_of(rows);
  }
  return text;
}

std::string path_text(const pair_facts& pair) {
  if (pair.links > 0) {
    return fmt::format("NV{}", pair.links);
  }
  return pair.pcie_distance.empty() ? "?" : base::shortened(base::printable(pair.pcie_distance), 4);
}

std::string peer_cell(const facts& facts, std::size_t row, std::size_t column) {
  if (row == column) {
    return ".";
  }
  const pair_facts* pair = pair_of(facts, row, column);
  if (pair == nullptr) {
    return "?";
  }
  if (!pair->access.value_or(true)) {
    return fmt::format("({})", path_text(*pair));
  }
  std::string text = path_text(*pair);
  text += pair->native_atomics.value_or(false) ? " a" : "";
  text += pair->performance_rank >= 0 ? fmt::format(" r{}", pair->performance_rank) : "";
  return text;
}

std::string link_legend(const facts& facts) {
  std::set<std::string> lines;
  for (const pair_facts& each : facts.pairs) {
    if (each.links == 0) {
      continue;
    }
    std::string line =
        fmt::format("  NV{0}  {0} {1}", each.links, each.links == 1 ? "NVLink" : "NVLinks");
    line += each.link_version > 0 ? fmt::format(" of generation {}", each.link_version) : "";
    line += each.through_switch ? ", through NVSwitch" : "";
    line += each.link_bytes_per_second > 0
                ? fmt::format(", {} each way in total", rate_text(each.link_bytes_per_second))
                : "";
    lines.insert(std::move(line));
  }
  std::string text;
  for (const std::string& each : lines) {
    text += each + "\n";
  }
  return text;
}

/// Explains the marks that occur in the cells.
std::string cell_legend(const facts& facts) {
  const auto any = [&facts](auto&& holds) {
    return std::any_of(facts.pairs.begin(), facts.pairs.end(), [&](const pair_facts& each) {
      return each.from != each.to && holds(each);
    });
  };
  const auto shown = [](const pair_facts& each) { return each.access.value_or(true); };
  std::string text;
  const auto add = [&text](const char* mark) {
    text += (text.empty() ? "  " : "; ") + std::string(mark);
  };
  if (any([&](const pair_facts& each) {
        return shown(each) && each.native_atomics.value_or(false);
      })) {
    add("a  native atomics");
  }
  if (any([&](const pair_facts& each) { return shown(each) && each.performance_rank >= 0; })) {
    add("rN  the driver's rank of the path, 0 is best");
  }
  if (any([&](const pair_facts& each) { return !shown(each); })) {
    add("(X)  no peer access");
  }
  const auto unknown = [&](std::size_t row, std::size_t column) {
    const pair_facts* pair = row == column ? nullptr : pair_of(facts, row, column);
    return row != column && (pair == nullptr || path_text(*pair) == "?");
  };
  for (std::size_t at = 0; at < facts.gpus.size() * facts.gpus.size(); ++at) {
    if (unknown(at / facts.gpus.size(), at % facts.gpus.size())) {
      add("?  unknown");
      break;
    }
  }
  return text.empty() ? text : text + "\n";
}

std::string peers(const facts& facts) {
  const std::size_t count = facts.gpus.size();
  std::string text = matrix("Peers (row uses memory of column)", count, [&](auto row, auto column) {
    return peer_cell(facts, row, column);
  });
  text += link_legend(facts);
  text += cell_legend(facts);
  const auto known = [](const pair_facts& each) { return !each.pcie_distance.empty(); };
  if (has_links(facts) && std::any_of(facts.pairs.begin(), facts.pairs.end(), known)) {
    text += matrix("PCIe distance", count, [&](auto row, auto column) {
      const pair_facts* pair = pair_of(facts, row, column);
      return row == column     ? "."
             : pair == nullptr ? "?"
                               : base::shortened(base::printable(pair->pcie_distance), 4);
    });
  }
  text += !std::any_of(facts.pairs.begin(), facts.pairs.end(), known)
              ? ""
              : "  PIX  one PCIe switch; PXB  several; PHB  through the CPU's bridge; NODE  within "
                "a NUMA "
                "node;\n  SYS  between NUMA nodes\n";
  return text;
}

std::string rate_cell(const measured_pair* pair) {
  if (pair == nullptr || pair->bytes_per_second <= 0) {
    return pair != nullptr && !pair->problem.empty() ? "failed" : "-";
  }
  const double giga = pair->bytes_per_second / 1e9;
  return giga < 10 ? fmt::format("{:.1f}", giga) : fmt::format("{:.0f}", giga);
}

std::string latency_cell(const measured_pair* pair) {
  return pair == nullptr || pair->latency_ns <= 0 ? "-" : fmt::format("{:.0f}", pair->latency_ns);
}

std::string mapping_cell(const measured_pair* pair) {
  return pair == nullptr || pair->mapping_ns <= 0 ? "-"
                                                  : fmt::format("{:.0f}", pair->mapping_ns / 1e3);
}

std::string measurements(const topology& topology) {
  if (topology.measured.empty()) {
    return {};
  }
  const std::size_t count = topology.machine.gpus.size();
  std::string text = matrix("Measured, GB/s (row reads column)", count, [&](auto row, auto column) {
    return rate_cell(measured_of(topology, row, column));
  });
  text +=
      matrix("Measured, ns of a small copy (row reads column)", count, [&](auto row, auto column) {
        return latency_cell(measured_of(topology, row, column));
      });
  text += matrix(
      "Measured, us of a first mapping (row maps memory of column)",
      count,
      [&](auto row, auto column) { return mapping_cell(measured_of(topology, row, column)); });
  std::set<std::string> problems;
  for (const measured_pair& each : topology.measured) {
    if (!each.problem.empty()) {
      problems.insert(base::printable(each.problem));
    }
  }
  for (const std::string& each : problems) {
    text += base::wrapped("failed: " + each, 2);
  }
  return text;
}

std::string segments(const topology& topology) {
  base::table rows({{"GPU"}, {"SIZE"}, {"SEGMENT"}});
  std::size_t left_out = 0;
  const auto add = [&](const std::string& where, const std::vector<const open_segment*>& some) {
    for (const open_segment* each : some) {
      if (rows.size() >= max_segments) {
        ++left_out;
      } else {
        rows.add({where,
                  base::size_text(each->size_bytes),
                  base::shortened(base::printable(each->name), 72)});
      }
    }
  };
  for (std::size_t i = 0; i < topology.machine.gpus.size(); ++i) {
    add(std::to_string(i), segments_of(topology, i));
  }
  for (const open_segment* each : other_segments(topology)) {
    add(each->device.empty() ? "host" : "hidden", {each});
  }
  if (rows.empty()) {
    return {};
  }
  return fmt::format(
      "\n{}{}", text_of(rows), left_out == 0 ? "" : fmt::format("+{} more: gpushm ls\n", left_out));
}

std::string hidden(const facts& facts) {
  std::string text;
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    const std::string problem = open_problem(facts.gpus[i]);
    if (!problem.empty()) {
      text += base::wrapped(fmt::format("GPU {} cannot be opened here: {}", i, problem), 0);
    }
  }
  return text.empty() ? text : "\n" + text;
}

}  // namespace

std::string topology_text(const topology& topology) {
  const facts& machine = topology.machine;
  std::string text = driver_text(machine);
  text += text.empty() ? "" : "\n\n";
  if (const std::string problem = driver_problem(machine); !problem.empty()) {
    const std::string unusable =
        fmt::format("driver not usable: {} (run gpushm doctor for the cause and a fix)",
                    base::printable(problem));
    text = fmt::format("{}\n{}", base::wrapped(unusable, 0), text);
  }
  if (machine.gpus.empty()) {
    return text + base::wrapped(no_gpu_text(machine), 0) + segments(topology);
  }
  text += identities(machine) + "\n" + properties(machine) + instances(machine) + hidden(machine);
  if (machine.gpus.size() > 1) {
    text += peers(machine);
  }
  return text + measurements(topology) + segments(topology);
}

}  // namespace gpushm::inspect
