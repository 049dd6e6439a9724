// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/opened.hpp"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/checksum.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/output_file.hpp"
#include "apps/gpushm/segment/transfer.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/text_layout.hpp"

namespace gpushm::cli {

namespace {

// Of longer metadata, human-readable output shows only the size.
constexpr std::size_t shown_metadata_bytes = 400;

std::string hexadecimal(std::uint32_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%08x", value);
  return text.data();
}

std::string metadata_text(std::span<const std::byte> metadata) {
  const std::string size = exact_size_text(metadata.size());
  if (metadata.empty()) {
    return "none";
  }
  if (metadata.size() > shown_metadata_bytes || !is_text(metadata)) {
    return size + ", printed by --json";
  }
  return as_text(metadata);
}

struct outcome {
  std::optional<std::uint32_t> checksum;
};

// Reads the segment once for both the checksum and the file.
outcome read_contents(const use_arguments& arguments,
                      const segment& opened,
                      const origin& origin,
                      const std::optional<app::stop_signal>& stop) {
  outcome result;
  if (!arguments.checksum && arguments.out.empty()) {
    return result;
  }
  crc32c sum;
  std::optional<output_file> file;
  if (!arguments.out.empty()) {
    file.emplace(arguments.out);
  }
  for_each_block(opened, file ? "writing" : "reading", [&](std::span<const std::byte> block) {
    if (stop && stop->pending()) {
      throw error(errc::system_error,
                  file ? "write file" : "read",
                  file ? arguments.out : origin.object,
                  "interrupted by a signal before it was complete",
                  "run it again");
    }
    if (arguments.checksum) {
      sum.add(block);
    }
    if (file) {
      file->write(block);
    }
  });
  if (file) {
    file->commit();
  }
  if (arguments.checksum) {
    result.checksum = sum.value();
  }
  return result;
}

void show(const use_arguments& arguments,
          const segment& opened,
          const origin& origin,
          const outcome& result) {
  const auto metadata = opened.metadata();
  if (origin.json) {
    json document = to_json(opened);
    document["metadata_text"] = is_text(metadata) ? json(as_text(metadata)) : json(nullptr);
    document["metadata_base64"] = base64(metadata);
    document["crc32c"] = result.checksum ? json(hexadecimal(*result.checksum)) : json(nullptr);
    document["out"] = arguments.out.empty() ? json(nullptr) : json(arguments.out);
    if (origin.from_file) {
      document["file"] = origin.object;
    }
    print_json(json{{origin.verb, std::move(document)}});
    return;
  }
  fields lines = segment_fields(opened);
  if (origin.from_file && !opened.name().empty()) {
    lines.insert(lines.begin(), {"name", opened.name()});
  }
  lines.emplace_back("access", to_string(opened.access()));
  lines.emplace_back("metadata", metadata_text(metadata));
  if (result.checksum) {
    lines.emplace_back("crc32c", hexadecimal(*result.checksum));
  }
  if (!arguments.out.empty()) {
    lines.emplace_back("written to",
                       arguments.out == standard_output ? "standard output" : arguments.out);
  }
  print_line(fmt::format("{} \"{}\"", origin.verb, origin.object));
  print(base::fields_text(lines, 2));
}

void hold(const segment& held, const origin& origin, const app::stop_signal& stop) {
  // The exporter of a handle is not monitored: its state stays `unknown`.
  bool reported = held.state() == segment_state::unknown;
  while (!stop.wait(std::chrono::milliseconds(200))) {
    const segment_state state = held.state();
    if (!reported && state != segment_state::live) {
      note(fmt::format(
          "hold \"{}\": state is now {}; {}",
          origin.object,
          to_string(state),
          state == segment_state::device_lost ? "its memory is gone" : "the mapping stays valid"));
      reported = true;
    }
  }
}

}  // namespace

int use_opened(const segment& opened, const use_arguments& arguments, const origin& origin) {
  // Before the output: a process that reads "opened" may send the signal immediately.
  if (arguments.out == standard_output) {
    reserve_standard_output();
  }
  std::optional<app::stop_signal> stop;
  if (arguments.hold) {
    stop.emplace();
  }
  show(arguments, opened, origin, read_contents(arguments, opened, origin, stop));
  flush_output();
  if (stop) {
    hold(opened, origin, *stop);
  }
  return exit_ok;
}

}  // namespace gpushm::cli
