// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "apps/gpushm/command_table.hpp"

namespace gpushm::cli {

namespace {

// Its date stands for the sources, which have none.
constexpr const char* head = R"(.\" SPDX-License-Identifier: Apache-2.0
.\" Written by the program itself: gpushm man-page
.TH GPUSHM 1 "" "gpushm {}" "User Commands"
.ad l
.nh
.SH NAME
gpushm \- POSIX shared memory for GPUs
.SH SYNOPSIS
.B gpushm
.I COMMAND
.RI [ OPTIONS ]
.br
.B gpushm help
.RI [ COMMAND ]
.SH DESCRIPTION
One process creates a named segment of GPU or host memory; other processes open it by name.
A broker
.RB ( "gpushm serve" )
knows the names of one domain.
Options follow the command.
.SS Values
.TP
.I SIZE
4096, 64MiB, 1.5GiB, 10kB: KiB, MiB, GiB and TiB (also K, M, G, T) are powers of 1024; kB, MB, GB and TB are powers of 1000.
.TP
.I TIME
500ms, 10s, 1.5s, 2m, 1h.
.TP
.I DEVICE
host, a CUDA ordinal, GPU\-<uuid>, MIG\-<uuid>, or auto: the first visible GPU, or the host if there is none.
.SH COMMANDS
)";

constexpr const char* tail = R"(.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
The operation failed; one line on standard error gives the operation, the cause and the next step.
.TP
.B 2
Wrong usage; of weights diff and weights verify, whose status 1 means that something differs, also every failure.
.SH ENVIRONMENT
.TP
.B GPUSHM_SOCKET
The broker's socket, unless
.B \-\-socket
is given.
.SH FILES
.TP
.I /run/gpushm/d/<domain>/socket
Sockets of the domains that are mounted here.
.SH EXAMPLES
.nf
export GPUSHM_SOCKET=/tmp/gpushm.socket
gpushm serve &
gpushm create hello \-\-size 64MiB \-\-fill 42 \-\-lifetime persistent
gpushm open hello \-\-checksum
.fi
.SH SEE ALSO
.BR gpushm (3)
)";

/// As text of roff, whatever it begins with. An ellipsis becomes three dots; other characters that
/// are not ASCII do not occur in descriptions.
std::string roff(std::string_view text) {
  constexpr std::string_view ellipsis = "…";
  std::string result;
  while (!text.empty()) {
    if (text.starts_with(ellipsis)) {
      result += "...";
      text.remove_prefix(ellipsis.size());
      continue;
    }
    switch (const char c = text.front()) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case ',':
      case '|':
        result += std::string(1, c) + "\\:";  // long lists may be broken here
        break;
      default:
        result += c;
    }
    text.remove_prefix(1);
  }
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

std::string sentence(std::string_view text) {
  std::string result = roff(text);
  if (!result.empty() && result.back() != '.') {
    result += '.';
  }
  return result;
}

std::string usage_of(const command_entry& command) {
  std::string text = fmt::format("\\fBgpushm {}\\fR", roff(command.name));
  for (const option_entry& option : command.options) {
    if (option.is_argument) {
      const std::string name = option.names.front() + (option.is_repeated ? "..." : "");
      text += option.is_required ? fmt::format(" \\fI{}\\fR", roff(name))
                                 : fmt::format(" [\\fI{}\\fR]", roff(name));
    }
  }
  return text + (command.takes_program ? " [\\fIARGUMENT\\fR...]" : " [\\fIOPTIONS\\fR]");
}

std::string option_text(const option_entry& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += (names.empty() ? "" : ", ") + fmt::format("\\fB{}\\fR", roff(name));
  }
  const std::string type = option.type.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.type));
  return fmt::format(".TP\n{}{}\n{}\n", names, type, sentence(option.description));
}

}  // namespace

std::string man_page(const std::vector<command_entry>& table) {
  std::string page = fmt::format(head, GPUSHM_VERSION);
  for (const command_entry& command : table) {
    if (command.has_commands) {
      continue;  // its commands follow
    }
    page += fmt::format(".SS gpushm {}\n{}\n.PP\n{}\n",
                        roff(command.name),
                        usage_of(command),
                        sentence(command.description));
    for (const option_entry& option : command.options) {
      if (option.names.back() != "--help") {
        page += option_text(option);
      }
    }
  }
  return page + tail;
}

}  // namespace gpushm::cli
