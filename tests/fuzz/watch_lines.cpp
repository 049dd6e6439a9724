// SPDX-License-Identifier: Apache-2.0
// A watch stream gives the same events and the same failure however it is split, and throws only
// `error`.
#include "kubernetes/api_client/watch_lines.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/require.hpp"

namespace {

using gpushm::api_client::watch_event;
using gpushm::api_client::watch_lines;

constexpr std::size_t max_bytes = 4'096;

struct outcome {
  std::vector<std::string> events;
  std::string failure;
  bool any = false;
  bool operator==(const outcome&) const = default;
};

/// Reads `piece` bytes at a time; 0: all in one piece.
outcome read(std::string_view text, std::size_t piece) {
  outcome outcome;
  const std::function<void(const watch_event&)> take = [&](const watch_event& event) {
    GPUSHM_REQUIRE(event.type == "ADDED" || event.type == "MODIFIED" || event.type == "DELETED" ||
                   event.type == "BOOKMARK");
    GPUSHM_REQUIRE(event.object.is_object());
    outcome.events.push_back(
        event.type + event.object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  watch_lines lines({"watch", "/apis/g/v1/things"}, max_bytes, take);
  try {
    while (!text.empty()) {
      // A separate buffer without slack after its end.
      const std::string part(text.substr(0, piece == 0 ? text.size() : piece));
      text.remove_prefix(part.size());
      outcome.any = lines.take(part) || outcome.any;
    }
  } catch (const gpushm::error& failure) {
    outcome.failure = failure.what();
    GPUSHM_REQUIRE(!outcome.failure.empty());
    outcome.any = false;
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const outcome whole = read(text, 0);
  GPUSHM_REQUIRE(read(text, 1) == whole);
  GPUSHM_REQUIRE(read(text, 1 + size % 61) == whole);
  GPUSHM_REQUIRE(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >=
                 whole.events.size());
  return 0;
}
