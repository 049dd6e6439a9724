// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/completion.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "base/text/text.hpp"

namespace gpushm::cli {

namespace {

constexpr std::string_view files = ":files\n";
constexpr std::string_view directories = ":directories\n";

/// The command that the words before the last one name, and where its arguments begin.
struct position {
  const command_entry* command = nullptr;  ///< null: none yet
  std::size_t next = 0;                    ///< index of the word after its name
};

const command_entry* find_command(const std::vector<command_entry>& table, std::string_view name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const command_entry& each) { return each.name == name; });
  return found == table.end() ? nullptr : &*found;
}

position find_position(const std::vector<command_entry>& table,
                       const std::vector<std::string>& words) {
  position at;
  std::string name;
  while (at.next + 1 < words.size() && (at.command == nullptr || at.command->has_commands)) {
    name += (name.empty() ? "" : " ") + words[at.next];
    const command_entry* const entry = find_command(table, name);
    if (entry == nullptr) {
      break;
    }
    at.command = entry;
    ++at.next;
  }
  return at;
}

const option_entry* find_option(const command_entry& command, std::string_view name) {
  for (const option_entry& each : command.options) {
    if (std::find(each.names.begin(), each.names.end(), name) != each.names.end()) {
      return &each;
    }
  }
  return nullptr;
}

/// The commands directly below `parent`, with their descriptions.
std::string commands_below(const std::vector<command_entry>& table, const std::string& parent) {
  const std::string prefix = parent.empty() ? std::string() : parent + " ";
  std::string text;
  for (const command_entry& each : table) {
    if (each.name.starts_with(prefix)) {
      const std::string rest = each.name.substr(prefix.size());
      if (!rest.empty() && rest.find(' ') == std::string::npos) {
        text += rest + "\t" + each.description + "\n";
      }
    }
  }
  return text;
}

/// Which names an argument can have.
struct name_kinds {
  bool segments = false;
  bool versions = false;  ///< "w/x@7", also if it has several parts
  bool bases = false;     ///< names that have versions
};

/// Names for arguments and options that take one. Empty without a broker.
std::string names_of(const std::string& socket, const name_kinds& kinds) {
  std::set<std::string> names;
  try {
    for (const segment_info& each : segments_for_hint(socket)) {
      // A name with a line feed would be two; such names cannot be created, but a broker is another
      // process.
      if (!internal_text(each.name).empty() || base::printable(each.name) != each.name) {
        continue;
      }
      if (kinds.segments) {
        names.insert(each.name);
      }
      if (const std::size_t at = each.name.find('@'); at != std::string::npos) {
        if (kinds.versions) {
          names.insert(each.name.substr(0, each.name.find('/', at)));
        }
        if (kinds.bases) {
          names.insert(each.name.substr(0, at));
        }
      }
    }
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): without a broker there are no names
  }
  std::string text;
  for (const std::string& each : names) {
    text += each + "\n";
  }
  return text;
}

/// Values of the type "read|rw"; empty for other types.
std::string choices(std::string_view type) {
  if (type.find('|') == std::string_view::npos ||
      std::any_of(type.begin(), type.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) {
    return {};
  }
  std::string text(type);
  std::replace(text.begin(), text.end(), '|', '\n');
  return text + "\n";
}

std::string values_of(const option_entry& option) {
  if (std::string some = choices(option.type); !some.empty()) {
    return some;
  }
  if (option.type == "DEVICE") {
    return "auto\nhost\n0\n";
  }
  if (option.type == "DIR") {
    return std::string(directories);
  }
  if (option.type == "FILE" || option.type == "PATH" || option.type == "TEXT|@FILE") {
    return std::string(files);
  }
  return {};
}

bool takes_segment(std::string_view command) {
  constexpr auto with_names = std::to_array<std::string_view>({"open",
                                                               "stat",
                                                               "rm",
                                                               "wait",
                                                               "release",
                                                               "ls",
                                                               "channel pub",
                                                               "channel sub",
                                                               "channel stat"});
  return std::find(with_names.begin(), with_names.end(), command) != with_names.end();
}

std::string arguments_of(const command_entry& command, const std::string& socket) {
  const auto argument = std::find_if(command.options.begin(),
                                     command.options.end(),
                                     [](const option_entry& each) { return each.is_argument; });
  if (argument == command.options.end()) {
    return {};
  }
  if (takes_segment(command.name)) {
    return names_of(socket, {.segments = true, .versions = command.name == "rm"});
  }
  if (command.name == "weights diff" || command.name == "weights verify") {
    return names_of(socket, {.segments = true, .versions = true}) + std::string(files);
  }
  if (command.name.starts_with("weights ")) {
    const bool takes_version = command.name == "weights pin";
    return names_of(socket, {.versions = takes_version, .bases = !takes_version});
  }
  const std::string& name = argument->names.front();
  return name == "FILE" || name == "PROGRAM" ? std::string(files)
         : name == "DIR"                     ? std::string(directories)
                                             : std::string();
}

std::string options_of(const command_entry& command, const std::set<std::string>& given) {
  std::string text;
  for (const option_entry& each : command.options) {
    const std::string& name = each.names.back();
    if (!each.is_argument && (each.is_repeated || !given.contains(name))) {
      text += name + "\t" + each.description + "\n";
    }
  }
  return text;
}

/// The lines that begin with `word`, and directives.
std::string matching(const std::string& lines, const std::string& word) {
  std::string text;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin) + 1;
    const std::string line = lines.substr(begin, end - begin);
    if (line == files || line == directories || line.starts_with(word)) {
      text += line;
    }
    begin = end;
  }
  return text;
}

}  // namespace

std::string completions(const std::vector<command_entry>& table,
                        const std::vector<std::string>& words) {
  const std::string word = words.empty() ? std::string() : words.back();
  const position at = find_position(table, words);
  if (at.command == nullptr || at.command->has_commands || at.command->name == "help") {
    const bool is_help = at.command != nullptr && at.command->name == "help";
    const std::string parent = at.command != nullptr && !is_help ? at.command->name : std::string();
    const bool is_next = at.next + 1 >= words.size();  // else an unknown command comes first
    return is_next ? matching(commands_below(table, parent), word) : std::string();
  }
  const command_entry& command = *at.command;
  std::set<std::string> given;
  std::string socket;
  const option_entry* pending = nullptr;  // whose value comes next
  for (std::size_t i = at.next; i + 1 < words.size(); ++i) {
    if (pending != nullptr) {
      socket = pending->names.back() == "--socket" ? words[i] : socket;
      pending = nullptr;
      continue;
    }
    if (const option_entry* const option = find_option(command, words[i])) {
      given.insert(option->names.back());
      pending = option->type.empty() ? nullptr : option;
    } else if (command.takes_program) {
      return std::string(files);  // arguments of the program
    }
  }
  if (pending != nullptr) {
    return matching(values_of(*pending), word);
  }
  if (word.starts_with('-')) {
    return matching(options_of(command, given), word);
  }
  return matching(arguments_of(command, socket), word);
}

}  // namespace gpushm::cli
