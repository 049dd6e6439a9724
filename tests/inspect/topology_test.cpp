// SPDX-License-Identifier: Apache-2.0
// Pictures and tables of recorded and synthetic machines: comparison with reviewed golden files, no
// overlapping texts, safe with hostile names.

#include "inspect/topology/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/text/text_layout.hpp"
#include "tests/support/machines/machines.hpp"

namespace gpushm::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t gib = 1ULL << 30U;

facts machine_of(std::size_t count, int per_node) {
  facts facts;
  facts.module_version = "580.159.04";
  facts.driver.cuda.version = 13000;
  for (std::size_t i = 0; i < count; ++i) {
    gpu_facts gpu;
    const std::string digits = std::to_string(i);
    gpu.pci_address = "0000:" + std::to_string(18 + i) + ":00.0";
    gpu.uuid = "GPU-0000000" + digits + "-1111-2222-3333-444444444444";
    gpu.name = "NVIDIA L4";
    gpu.minor = static_cast<int>(i);
    gpu.numa_node = per_node == 0 ? -1 : static_cast<int>(i) / per_node;
    gpu.open_error = 0;
    gpu.sharing = "full";
    cuda_gpu_view cuda;
    cuda.ordinal = static_cast<int>(i);
    cuda.uuid = gpu.uuid;
    cuda.name = gpu.name;
    cuda.compute_major = 8;
    cuda.compute_minor = 9;
    cuda.total_bytes = 22 * gib;
    cuda.multiprocessors = 58;
    cuda.vmm = cuda.file_handles = cuda.pool_file_handles = true;
    gpu.cuda.push_back(cuda);
    facts.gpus.push_back(std::move(gpu));
  }
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from != to) {
        pair_facts pair;
        pair.from = from;
        pair.to = to;
        pair.access = true;
        pair.native_atomics = false;
        pair.performance_rank = 1;
        pair.pcie_distance = facts.gpus[from].numa_node == facts.gpus[to].numa_node ? "PIX" : "SYS";
        facts.pairs.push_back(pair);
      }
    }
  }
  return facts;
}

void link(facts& facts, std::size_t a, std::size_t b, int links, bool switched = false) {
  for (pair_facts& pair : facts.pairs) {
    if ((pair.from == a && pair.to == b) || (pair.from == b && pair.to == a)) {
      pair.links = links;
      pair.link_version = 4;
      pair.native_atomics = true;
      pair.performance_rank = 0;
      pair.through_switch = switched;
      pair.link_bytes_per_second = 25e9 * links;
    }
  }
}

std::vector<measured_pair> measured(const facts& facts, double rate) {
  std::vector<measured_pair> pairs;
  for (const gpu_facts& from : facts.gpus) {
    for (const gpu_facts& to : facts.gpus) {
      const bool own = &from == &to;
      pairs.push_back({from.uuid,
                       to.uuid,
                       own ? 2.12e12 : rate,
                       own ? 1300.0 : 2600.0,
                       "",
                       256UL << 20U,
                       own ? 88e3 : 945e3,
                       256UL << 20U});
    }
  }
  return pairs;
}

std::vector<open_segment> segments(const facts& facts, std::size_t count) {
  std::vector<open_segment> made;
  for (std::size_t i = 0; i < count; ++i) {
    made.push_back({"w/llama-3-70b-instruct/layers/" + std::to_string(i),
                    (i + 1) * gib,
                    i % 5 == 4 ? "" : facts.gpus.at(i * i % facts.gpus.size()).uuid});
  }
  return made;
}

/// Every shape to draw, by name.
std::map<std::string, topology> shapes() {
  std::map<std::string, topology> entries;
  for (const std::string& name : gpushm_tests::machine_names()) {
    entries[name].machine = gpushm_tests::recorded_facts(name);
  }
  entries["one"].machine = machine_of(1, 1);

  topology& two = entries["two-linked"];
  two.machine = machine_of(2, 2);
  link(two.machine, 0, 1, 18);
  two.measured = measured(two.machine, 397e9);
  two.segments = segments(two.machine, 4);

  topology& switched = entries["two-switched"];
  switched.machine = machine_of(2, 1);
  link(switched.machine, 0, 1, 18, true);
  switched.measured = measured(switched.machine, 397e9);

  topology& mesh = entries["four-mesh"];
  mesh.machine = machine_of(4, 2);
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = a + 1; b < 4; ++b) {
      link(mesh.machine, a, b, 4);
    }
  }
  mesh.segments = segments(mesh.machine, 20);

  topology& pairs = entries["four-pairs"];
  pairs.machine = machine_of(4, 4);
  link(pairs.machine, 0, 1, 2);
  link(pairs.machine, 2, 3, 2);
  pairs.machine.gpus[3].sharing = "time-sliced";
  pairs.machine.gpus[3].time_slices = 4;

  topology& cube = entries["eight-cube"];
  cube.machine = machine_of(8, 4);
  for (std::size_t side = 0; side < 8; side += 4) {
    link(cube.machine, side + 0, side + 1, 1);
    link(cube.machine, side + 0, side + 2, 1);
    link(cube.machine, side + 0, side + 3, 2);
    link(cube.machine, side + 1, side + 2, 2);
    link(cube.machine, side + 1, side + 3, 1);
    link(cube.machine, side + 2, side + 3, 2);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    link(cube.machine, i, i + 4, i == 0 ? 2 : 1);
  }
  cube.measured = measured(cube.machine, 21.5e9);

  topology& plain = entries["eight-pcie"];
  plain.machine = machine_of(8, 0);
  plain.measured = measured(plain.machine, 21.5e9);
  plain.measured[1] = {
      plain.measured[1].from, plain.measured[1].to, 0, 0, "no peer access", 0, 0, 0};
  for (pair_facts& pair : plain.machine.pairs) {
    pair.access = pair.from / 4 == pair.to / 4;
  }
  plain.segments = segments(plain.machine, 40);

  topology& full = entries["eight-switched"];
  full.machine = gpushm_tests::recorded_facts("dgx-h100");
  full.measured = measured(full.machine, 397e9);
  full.measured[1].bytes_per_second = 380e9;
  full.segments = segments(full.machine, 17);
  return entries;
}

class each_shape : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static const topology& shape() {
    static const auto all = shapes();
    return all.at(GetParam());
  }
};

/// GPUSHM_WRITE_GOLDEN=1 in the environment writes a missing golden file: review it.
void expect_golden(const std::string& file, const std::string& made) {
  const std::string path = std::string(GPUSHM_GOLDEN_DIR) + "/" + file;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code changes the environment
  if (std::getenv("GPUSHM_WRITE_GOLDEN") != nullptr && !std::ifstream(path)) {
    std::ofstream(path, std::ios::binary) << made;
  }
  std::ifstream golden(path, std::ios::binary);
  ASSERT_TRUE(golden) << path << " is missing";
  EXPECT_EQ(made, std::string(std::istreambuf_iterator<char>(golden), {})) << path;
}

TEST_P(each_shape, matches_golden_files) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "the golden files are missing on this machine";
  }
  expect_golden(GetParam() + ".txt", topology_text(shape()));
  expect_golden(GetParam() + ".svg", topology_svg(shape()));
  expect_golden(GetParam() + ".dot", topology_dot(shape()));
}

TEST_P(each_shape, fits_100_columns) {
  std::istringstream text(topology_text(shape()));
  for (std::string line; std::getline(text, line);) {
    EXPECT_LE(base::width(line), 100U) << line;
  }
}

// ---- pictures ----

struct box {
  double left, top, right, bottom;
  std::string what;
};

double attribute(const std::string& element, const std::string& name) {
  std::smatch found;
  return std::regex_search(element, found, std::regex(" " + name + "=\"(-?[0-9.]+)\""))
             ? std::stod(found[1])
             : 0;
}

std::vector<box> texts_of(const std::string& svg) {
  std::vector<box> boxes;
  const std::regex element("<text ([^>]*)>([^<]*)</text>");
  for (std::sregex_iterator i(svg.begin(), svg.end(), element), end; i != end; ++i) {
    const std::string whole = " " + (*i)[1].str();
    const double size = attribute(whole, "font-size");
    std::string words = std::regex_replace((*i)[2].str(), std::regex("&[a-z]+;"), "x");
    const double wide = 0.58 * size * static_cast<double>(base::width(words));
    const double x = attribute(whole, "x");
    const double y = attribute(whole, "y");
    const double left = whole.find("\"middle\"") != std::string::npos ? x - wide / 2
                        : whole.find("\"end\"") != std::string::npos  ? x - wide
                                                                      : x;
    boxes.push_back({left, y - 0.8 * size, left + wide, y + 0.2 * size, words});
  }
  return boxes;
}

void expect_readable(const std::string& svg) {
  const auto boxes = texts_of(svg);
  ASSERT_THAT(boxes, Not(IsEmpty()));
  const double wide = attribute(svg, "width");
  const double high = attribute(svg, "height");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const box& a = boxes[i];
    EXPECT_TRUE(a.left >= 0 && a.top >= 0 && a.right <= wide && a.bottom <= high)
        << a.what << " is outside";
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      const box& b = boxes[j];
      EXPECT_FALSE(a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
          << "\"" << a.what << "\" and \"" << b.what << "\" overlap";
    }
  }
}

/// Elements are closed in the order in which they were opened, and text has no bare markup.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  std::size_t at = svg.find("?>") + 2;
  while ((at = svg.find('<', at)) != std::string::npos) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_THAT(open, IsEmpty());
  const std::regex bare("&(?!(amp|lt|gt|quot);)");
  EXPECT_FALSE(std::regex_search(svg, bare));
}

TEST_P(each_shape, texts_do_not_overlap) {
  expect_readable(topology_svg(shape()));
}

TEST_P(each_shape, is_well_formed) {
  expect_well_formed(topology_svg(shape()));
}

INSTANTIATE_TEST_SUITE_P(topology,
                         each_shape,
                         ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, shape] : shapes()) {
                             names.push_back(name);
                           }
                           return names;
                         }()),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(topology_pictures, switch_is_drawn_once) {
  const auto pictures = shapes();
  const std::string svg = topology_svg(pictures.at("eight-switched"));
  EXPECT_THAT(svg,
              HasSubstr("NVSwitch: 18 NVLinks (generation 4) per GPU, 450 GB/s each way, "
                        "measured 380 GB/s to 397 GB/s"));
  const auto lines = [](const std::string& text) {
    const std::regex line("<polyline");
    return std::distance(std::sregex_iterator(text.begin(), text.end(), line),
                         std::sregex_iterator());
  };
  EXPECT_EQ(lines(svg), 8 + 1);  // one per GPU, one in the legend
  EXPECT_EQ(lines(topology_svg(pictures.at("four-mesh"))), 6 + 1);
  EXPECT_EQ(lines(topology_svg(pictures.at("four-pairs"))), 2 + 4 + 2);
}

TEST(topology_pictures, segments_that_do_not_fit_are_counted) {
  const auto pictures = shapes();
  const topology& mesh = pictures.at("four-mesh");
  std::size_t on_first = 0;
  for (const auto& each : mesh.segments) {
    on_first += each.device == mesh.machine.gpus[0].uuid ? 1U : 0U;
  }
  ASSERT_GT(on_first, 4U);
  EXPECT_THAT(topology_svg(mesh), HasSubstr("+" + std::to_string(on_first - 3) + " more"));
}

TEST(topology_pictures, output_is_deterministic) {
  for (const auto& [name, shape] : shapes()) {
    EXPECT_EQ(topology_svg(shape), topology_svg(shape)) << name;
  }
}

TEST(topology_pictures, missing_gpu_is_reported) {
  topology none;
  EXPECT_THAT(topology_text(none), HasSubstr("no GPU here"));
  EXPECT_THAT(topology_dot(none), HasSubstr("no GPU here"));
  EXPECT_THAT(topology_svg(none), HasSubstr("no GPU here"));
  expect_well_formed(topology_svg(none));
}

// ---- hostile names ----

topology hostile() {
  const std::string name =
      "</text><script>alert(\"1\")</script>&amp;\"];\n\x1b]0;x\x07\\\xff\xc2\x9b\xe2\x80\xae" +
      std::string(300, 'W') + "\xe6\xbc\xa2\xe5\xad\x97";
  topology topology;
  topology.machine = machine_of(2, 1);
  link(topology.machine, 0, 1, 2);
  topology.machine.module_version = name;
  for (gpu_facts& gpu : topology.machine.gpus) {
    gpu.name = gpu.sharing = gpu.pci_address = name;
    gpu.nvml.emplace();
    gpu.nvml->mig_instances.push_back({"MIG-1", name, 1, 1, gib});
    gpu.uuid += name;
    topology.segments.push_back({name, gib, gpu.uuid});
  }
  topology.segments.push_back({name, gib, ""});
  topology.measured.push_back(
      {topology.machine.gpus[0].uuid, topology.machine.gpus[1].uuid, 0, 0, name, 0, 0, 0});
  topology.machine.pairs[0].pcie_distance = name;
  return topology;
}

void expect_no_control(const std::string& text) {
  for (const char c : text) {
    EXPECT_TRUE(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f));
  }
  EXPECT_THAT(text, Not(HasSubstr("\xc2\x9b")));
  EXPECT_THAT(text, Not(HasSubstr("\xe2\x80\xae")));
  EXPECT_THAT(text, Not(HasSubstr("\xff")));
}

TEST(topology_pictures, hostile_names_are_escaped) {
  const topology pictures = hostile();
  const std::string svg = topology_svg(pictures);
  expect_no_control(svg);
  expect_well_formed(svg);
  expect_readable(svg);
  EXPECT_THAT(svg, Not(HasSubstr("<script")));

  const std::string text = topology_text(pictures);
  expect_no_control(text);

  // No name terminates a DOT string early: outside of strings there is only the program's own text.
  const std::string dot = topology_dot(pictures);
  expect_no_control(dot);
  std::string outside;
  bool inside = false;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (inside && dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      inside = !inside;
    } else if (!inside) {
      outside += dot[i];
    }
  }
  EXPECT_FALSE(inside);
  EXPECT_THAT(outside, Not(HasSubstr("script")));
  EXPECT_THAT(outside, Not(HasSubstr("WWW")));
}

TEST(topology_pictures, pairs_of_missing_gpus_are_ignored) {
  topology pictures;
  pictures.machine = machine_of(1, 1);
  pair_facts stray;
  stray.from = 0;
  stray.to = 7;
  stray.links = 3;
  pictures.machine.pairs.push_back(stray);
  pictures.measured.push_back({"GPU-x", "", 1e9, 1, ""});
  pictures.segments.push_back({"a", 1, "GPU-x"});
  expect_well_formed(topology_svg(pictures));
  EXPECT_THAT(topology_text(pictures), HasSubstr("hidden"));
  EXPECT_THAT(topology_dot(pictures), Not(HasSubstr("gpu7")));
}

}  // namespace
}  // namespace gpushm::inspect
