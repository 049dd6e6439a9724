// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/audit.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "inspect/explain/characters.hpp"

namespace gpushm::inspect {

namespace {

constexpr auto npos = std::string_view::npos;

std::size_t word_length(std::string_view text) {
  return static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_word) -
                                  text.begin());
}

/// Fields of records of SELinux, AppArmor and seccomp.
constexpr std::array<std::string_view, 59> fields{
    "addr",           "app",        "arch",     "auid",      "capability", "capname",
    "class",          "code",       "comm",     "compat",    "daddr",      "denied",
    "denied_mask",    "dest",       "dev",      "error",     "exe",        "faddr",
    "family",         "flags",      "fport",    "fstype",    "fsuid",      "gid",
    "info",           "ino",        "ioctlcmd", "ip",        "laddr",      "lport",
    "name",           "namespace",  "netif",    "operation", "ouid",       "path",
    "peer",           "permissive", "pid",      "profile",   "protocol",   "requested",
    "requested_mask", "saddr",      "scontext", "ses",       "sig",        "signal",
    "sock_type",      "src",        "srcname",  "subj",      "syscall",    "target",
    "tclass",         "tcontext",   "trawcon",  "srawcon",   "uid"};

/// The field that `text` begins with, without "="; empty if it begins with another word.
std::string_view first_field(std::string_view text) {
  const std::string_view name = text.substr(0, word_length(text));
  const bool is_known = std::find(fields.begin(), fields.end(), name) != fields.end();
  return is_known && text.substr(name.size()).starts_with('=') ? name : std::string_view();
}

bool has_field(std::string_view record, std::string_view name) {
  for (auto at = record.find(name); at != npos; at = record.find(name, at + 1)) {
    if ((at == 0 || !is_word(record[at - 1])) && record.substr(at + name.size()).starts_with('=')) {
      return true;
    }
  }
  return false;
}

/// A record whose last field is there does not go on.
bool is_complete(std::string_view record) {
  const auto ends_with_value = [&](std::string_view name) {
    return has_field(record, name) && !record.ends_with('=');
  };
  return ends_with_value("permissive") ||
         (record.find("avc:") == npos && ends_with_value("code") && ends_with_value("ip"));
}

struct mark {
  std::size_t begin = 0;
  bool is_header = false;
  bool has_body = false;  ///< of a header: "avc: …" or "apparmor=…" may follow in the record
};

/// A header or the body of a record of SELinux or AppArmor that begins at `at`.
std::optional<mark> mark_at(std::string_view line, std::size_t at) {
  const std::string_view rest = line.substr(at);
  if (at > 0 && is_word(line[at - 1])) {
    return std::nullopt;
  }
  if (rest.starts_with("type=")) {
    const std::string_view type = rest.substr(5, word_length(rest.substr(5)));
    const std::string_view after = rest.substr(5 + type.size());
    if (type.empty() || !(after.starts_with(" msg=audit(") || after.starts_with(" audit("))) {
      return std::nullopt;
    }
    constexpr std::string_view kernel = "audit: ";
    const bool is_kernels = line.substr(0, at).ends_with(kernel);
    const bool has_body = type.find("AVC") != npos || type.find("APPARMOR") != npos ||
                          type == "1400" || type == "1107";
    return mark{at - (is_kernels ? kernel.size() : 0), true, has_body};
  }
  if (rest.starts_with("audit[")) {  // journald: "audit[4711]: AVC avc: denied …"
    std::size_t end = 6;
    while (end < rest.size() && is_digit(rest[end])) {
      ++end;
    }
    const std::string_view after = rest.substr(end);
    return end > 6 && after.starts_with("]: ")
               ? std::optional(mark{at, true, after.find("AVC") == 3})
               : std::nullopt;
  }
  const bool is_body = rest.starts_with("avc: denied") || rest.starts_with("avc: granted") ||
                       rest.starts_with("apparmor=\"");
  return is_body ? std::optional(mark{at, false, false}) : std::nullopt;
}

}  // namespace

std::vector<std::size_t> audit_records_in(std::string_view line) {
  std::vector<std::size_t> begins;
  const auto has = [&](std::string_view word) { return line.find(word) != npos; };
  if (!has("audit") && !has("avc: ") && !has("apparmor=")) {  // most lines
    return begins;
  }
  bool expects_body = false;
  for (auto at = line.find_first_of("at"); at != npos; at = line.find_first_of("at", at + 1)) {
    const auto found = mark_at(line, at);
    if (!found) {
      continue;
    }
    if (found->is_header || !expects_body) {
      begins.push_back(found->begin);
    }
    expects_body = found->is_header && found->has_body;
  }
  return begins;
}

std::optional<std::string_view> audit_record_goes_on(std::string_view record,
                                                     std::string_view next) {
  constexpr std::string_view blank = " ";
  constexpr std::string_view nothing;
  if (next.empty() || has_audit_record(next) || is_complete(record)) {
    return std::nullopt;
  }
  const auto is_missing = [&](std::string_view text) {
    const std::string_view name = first_field(text);
    return !name.empty() && !has_field(record, name);
  };
  const std::string_view last = record.substr(record.rfind(' ') + 1);
  const auto end_of_first = std::min(next.find(' '), next.size());
  const std::string_view first = next.substr(0, end_of_first);
  // "permissi", "ve=0"; "tclass=", "chr_file". Before others: AppArmor has a field "class".
  const std::string joined = std::string(last) + std::string(first);
  const std::string_view field = first_field(joined);
  if (!field.empty() && last.size() <= field.size() + 1 &&
      !has_field(record.substr(0, record.size() - last.size()), field)) {
    return nothing;
  }
  if (is_missing(next)) {
    return blank;
  }
  // "avc:", "denied { read }"; "{ read }", "for pid=1"; "{ read } f", "or pid=1".
  const auto follows = [&](std::string_view before, std::string_view word) {
    return (before.ends_with("avc:") && (word == "denied" || word == "granted")) ||
           (before.ends_with('}') && word == "for") || (before.ends_with(':') && word == "avc:");
  };
  if (follows(record, first)) {
    return blank;
  }
  if (follows(record.substr(0, record.find_last_not_of(' ', record.size() - last.size() - 1) + 1),
              joined)) {
    return nothing;
  }
  // "{ read", "write } for pid=1".
  const auto open = record.rfind('{');
  if (open != npos && record.find('}', open) == npos && next.find('}') != npos) {
    return blank;
  }
  // "name=\"nvi", "dia0\" dev=devtmpfs".
  const bool is_value =
      last.find('=') != npos || std::count(record.begin(), record.end(), '"') % 2 != 0;
  const std::string_view rest = next.substr(std::min(end_of_first + 1, next.size()));
  if (is_value && is_missing(rest)) {
    return nothing;
  }
  return std::nullopt;
}

}  // namespace gpushm::inspect
