// SPDX-License-Identifier: Apache-2.0
#pragma once

// Options shared by several commands, and the arguments that they fill. A malformed value is
// refused with the option's name.

#include <sys/types.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "gpushm/types.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gpushm::cli {

/// Arguments of every command that connects to a broker.
struct connection_arguments {
  std::string socket;
  /// Unset: the command's own timeout.
  std::optional<std::chrono::milliseconds> connect_timeout;
  bool json = false;
};

/// Where operators reach gpushm-brokerd.
struct node_arguments {
  std::string run_dir = "/run/gpushm";
  std::string domain = "default";
};

/// What to do with a segment of another process.
struct use_arguments {
  bool checksum = false;
  std::string out;
  bool hold = false;
};

/// Throws `CLI::ParseError`: "OPTION: "TEXT" is not EXPECTED".
[[noreturn]] void refuse(const std::string& option,
                         const std::string& text,
                         const std::string& expected);

CLI::Option* add_text(CLI::App& app,
                      const std::string& option,
                      const std::string& type,
                      const std::string& description,
                      const std::function<void(const std::string&)>& set);
/// An option that may be repeated, each time with one text.
CLI::Option* add_texts(CLI::App& app,
                       const std::string& option,
                       const std::string& type,
                       const std::string& description,
                       const std::function<void(const std::string&)>& add);
CLI::Option* add_size(CLI::App& app,
                      const std::string& option,
                      const std::string& description,
                      const std::function<void(std::uint64_t)>& set);
CLI::Option* add_duration(CLI::App& app,
                          const std::string& option,
                          const std::string& description,
                          const std::function<void(std::chrono::milliseconds)>& set);
/// A device, which the command checks when it uses it. Refuses an empty text, as of a variable that
/// is not set: it would mean the default.
CLI::Option* add_device(CLI::App& app,
                        const std::string& option,
                        const std::string& description,
                        std::string& target);
/// 0 to 255, or 0x00 to 0xff.
CLI::Option* add_fill(CLI::App& app, std::optional<std::uint8_t>& target);
/// A file mode in octal.
void add_mode(CLI::App& app,
              const std::string& option,
              const std::string& description,
              const std::function<void(mode_t)>& set);
/// A number from 1 to 16,777,216.
void add_count(CLI::App& app,
               const std::string& option,
               const std::string& description,
               std::uint32_t& target);
void add_access(CLI::App& app, access& target);
void add_json(CLI::App& app, bool& json);
/// The run directory of gpushm-brokerd.
CLI::Option* add_run_dir(CLI::App& app, std::string& run_dir);
void add_connection(CLI::App& app, connection_arguments& connection);
std::array<CLI::Option*, 2> add_node(CLI::App& app, node_arguments& node);
/// A file for the bytes, or "-"; excludes `json`, because both would be on standard output.
void add_out(CLI::App& app, const std::string& description, std::string& out, const bool& json);
/// Options for a segment of another process.
void add_use(CLI::App& app, use_arguments& out, const bool& json);

template <typename Value>
Value parse_number(const std::string& option,
                   const std::string& text,
                   int number_base,
                   const char* expected) {
  Value value{};
  std::string_view digits = text;
  if (number_base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) {
    digits.remove_prefix(2);
  }
  const auto [end, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, number_base);
  if (failed != std::errc() || end != digits.data() + digits.size() || digits.empty()) {
    refuse(option, text, expected);
  }
  return value;
}

template <typename Value>
CLI::Option* add_choice(CLI::App& app,
                        const std::string& option,
                        const std::string& description,
                        Value& target,
                        const std::map<std::string, Value>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    names += (names.empty() ? "" : "|") + name;
  }
  return add_text(app, option, names, description, [=, &target](const std::string& text) {
    const auto found = choices.find(text);
    if (found == choices.end()) {
      refuse(option, text, "one of " + names);
    }
    target = found->second;
  });
}

}  // namespace gpushm::cli
