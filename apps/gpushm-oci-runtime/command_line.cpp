// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/command_line.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {

namespace {

template <std::size_t Size>
bool is_one_of(std::string_view word, const std::array<std::string_view, Size>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_subcommand(std::string_view word) {
  constexpr auto words = std::to_array<std::string_view>(
      {"checkpoint", "create", "delete", "events", "exec",  "features", "help",
       "init",       "kill",   "list",   "mounts", "pause", "ps",       "restore",
       "resume",     "run",    "spec",   "start",  "state", "update",   "version"});
  return is_one_of(word, words);
}

/// "--name=value", "-name value" and so on.
struct option {
  std::string_view name;
  std::string_view value;
  bool has_value = false;
};

option read_option(std::string_view word) {
  option read;
  const auto equals = word.find('=');
  read.has_value = equals != std::string_view::npos;
  read.name = word.substr(0, equals);
  read.name.remove_prefix(std::min(read.name.find_first_not_of('-'), read.name.size()));
  read.value = read.has_value ? word.substr(equals + 1) : std::string_view();
  return read;
}

/// crun's parser also accepts "-bDIR" and "-fFILE"; runc's accepts "-bundle" and "-config" as long
/// options.
option read_create_option(std::string_view word) {
  option read = read_option(word);
  if (word.size() > 2 && (word[1] == 'b' || word[1] == 'f') && read.name.size() > 1 &&
      read.name != "bundle") {
    read = {word.substr(1, 1), word.substr(2), true};
  }
  return read;
}

/// Iterates over the arguments.
class reader {
 public:
  explicit reader(const std::vector<std::string>& words) : words_(words) {}

  [[nodiscard]] bool at_end() const { return next_ == words_.size(); }
  [[nodiscard]] const std::string& word() const { return words_[next_]; }
  void skip() { ++next_; }

  /// Returns the value of an option that requires one, from the option or the next argument.
  std::string take_value(const option& read) {
    if (read.has_value) {
      return std::string(read.value);
    }
    if (next_ == words_.size()) {
      throw error(errc::invalid_argument,
                  "read arguments",
                  fmt::format("--{}", read.name),
                  "the value is missing");
    }
    return words_[next_++];
  }

 private:
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
};

void read_global(reader& words, const option& read, command_line& out) {
  constexpr auto flags = std::to_array<std::string_view>(
      {"debug", "systemd-cgroup", "help", "h", "version", "v", "V", "?"});
  if (read.name == "log") {
    out.log = words.take_value(read);
  } else if (read.name == "log-format") {
    out.log_json = words.take_value(read) == "json";
  } else if (!read.has_value && !is_one_of(read.name, flags) && !words.at_end() &&
             !words.word().starts_with('-') && !is_subcommand(words.word())) {
    words.skip();
  }
}

// Options of create, run and restore. Other options with values are parsed only so that their
// values are not mistaken for the container's id.
void read_create_options(reader& words, command_line& out) {
  constexpr auto with_value = std::to_array<std::string_view>({"console-socket",
                                                               "pid-file",
                                                               "preserve-fds",
                                                               "image-path",
                                                               "work-path",
                                                               "parent-path",
                                                               "manage-cgroups-mode",
                                                               "empty-ns",
                                                               "lsm-profile",
                                                               "lsm-mount-context"});
  while (!words.at_end()) {
    const std::string_view word = words.word();
    words.skip();
    if (!word.starts_with('-') || word == "-") {
      out.container = word;
      continue;
    }
    const option read = read_create_option(word);
    if (read.name == "bundle" || read.name == "b") {
      out.bundle = words.take_value(read);
    } else if (read.name == "config" || read.name == "f") {
      out.config = words.take_value(read);
    } else if (is_one_of(read.name, with_value) && !read.has_value && !words.at_end()) {
      words.skip();
    }
  }
}

// crun's log can also be a journal.
void normalise_log(std::string& log) {
  if (log.starts_with("file:")) {
    log.erase(0, 5);
  } else if (log.starts_with("journald:") || log.starts_with("syslog:")) {
    log.clear();
  }
}

}  // namespace

bool command_line::creates_container() const {
  return subcommand == "create" || subcommand == "run" || subcommand == "restore";
}

std::string command_line::config_file() const {
  return config.starts_with('/') ? config : fmt::format("{}/{}", bundle, config);
}

command_line read_command_line(const std::vector<std::string>& arguments) {
  command_line out;
  out.forwarded = arguments;
  reader words(arguments);
  while (!words.at_end() && out.subcommand.empty()) {
    const std::string_view word = words.word();
    words.skip();
    if (word == "--dry-run") {
      out.dry_run = true;
    } else if (word.starts_with('-')) {
      read_global(words, read_option(word), out);
    } else {
      out.subcommand = word;
    }
  }
  normalise_log(out.log);
  if (out.creates_container()) {
    out.bundle = ".";
    read_create_options(words, out);
  }
  if (out.dry_run && !out.creates_container()) {
    throw error(errc::invalid_argument,
                "read arguments",
                "--dry-run",
                "the subcommand does not create a container",
                "gpushm-oci-runtime --dry-run create --bundle DIR ID");
  }
  return out;
}

}  // namespace gpushm::oci_runtime
