// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/watch_lines.hpp"

#include "base/text/quoted.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"

namespace gpushm::api_client {

bool watch_lines::take(std::string_view bytes) {
  bool any = false;
  while (true) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view part = bytes.substr(0, whole ? end : bytes.size());
    if (rest_.size() + part.size() > max_bytes_) {
      throw error(errc::message_too_large,
                  what_.operation,
                  what_.path,
                  "an event exceeds " + base::size_text(max_bytes_),
                  "watch fewer objects");
    }
    rest_.append(part);
    if (!whole) {
      return any;
    }
    const std::string line = std::exchange(rest_, {});
    if (!base::trim(line).empty()) {
      take_line(line);
      any = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void watch_lines::take_line(std::string_view line) {
  auto parsed = json_of(line);
  const bool fits = parsed && parsed->is_object() && parsed->contains("type") &&
                    (*parsed)["type"].is_string() && parsed->contains("object") &&
                    (*parsed)["object"].is_object();
  if (!fits) {
    throw error(errc::protocol_error,
                what_.operation,
                what_.path,
                "a line of the stream is not an event",
                "check that the URL is the API server's");
  }
  watch_event event{(*parsed)["type"].get<std::string>(), std::move((*parsed)["object"])};
  if (event.type == "ERROR") {
    throw_status(what_, 500, event.object, std::chrono::seconds(0));
  }
  if (event.type != "ADDED" && event.type != "MODIFIED" && event.type != "DELETED" &&
      event.type != "BOOKMARK") {
    throw error(errc::protocol_error,
                what_.operation,
                what_.path,
                "unknown event type " + base::in_quotes(event.type),
                "check that the URL is the API server's");
  }
  on_event_(event);
}

}  // namespace gpushm::api_client
