// SPDX-License-Identifier: Apache-2.0
#include "broker/session/member_log.hpp"

#include <string>
#include <string_view>

#include "base/report/log.hpp"

namespace gpushm::broker_detail {

namespace {

std::string text_of(const connection& connection) {
  std::string text = connection.peer.pid > 0 ? "pid " + std::to_string(connection.peer.pid)
                                             : "a client with unknown pid";
  if (connection.peer.uid_known) {
    text += ", uid " + std::to_string(connection.peer.uid);
  }
  if (!text.ends_with(connection.principal.key)) {
    text += ", " + connection.principal.key;
  }
  return text;
}

}  // namespace

void member_log::write(std::string_view text) {
  const succession::line_limit::verdict verdict = limit_.next(succession::line_limit::clock::now());
  succession::report_suppressed(verdict.suppressed);
  if (verdict.may_write) {
    base::log(log_level::warning, text);
  }
}

void member_log::dropped(const connection& connection, std::string_view why) {
  std::string text = "dropped ";
  text += text_of(connection);
  text += " in domain ";
  text += domain_;
  text += ": ";
  text += why;
  write(text);
}

}  // namespace gpushm::broker_detail
