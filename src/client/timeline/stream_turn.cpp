// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/stream_turn.hpp"

#include <algorithm>

#include "base/process/deadline.hpp"
#include "client/session/subject.hpp"
#include "gpu/streams/event.hpp"
#include "gpushm/error.hpp"
#include "sync/cpu_wait.hpp"

namespace gpushm::client_detail {

error too_many_waits(std::string_view operation, std::string_view object) {
  const auto& counted = streams::waiting_streams::of_process();
  return {errc::too_many_waits,
          operation,
          object,
          std::to_string(counted.limit()) + " streams of this process wait already, and CUDA has " +
              std::to_string(counted.connections()) + " connections",
          "set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process uses CUDA, let fewer streams "
          "wait, or allow a longer wait on the CPU"};
}

streams::counted_wait await_stream_turn(cuda::CUstream stream,
                                        const std::shared_ptr<mapped_page>& page,
                                        std::uint32_t timeline,
                                        const sync::condition& condition,
                                        std::chrono::milliseconds timeout,
                                        std::string_view object,
                                        const std::stop_token& stop) {
  auto& counted = streams::waiting_streams::of_process();
  const std::uint64_t id = streams::stream_id(stream, "wait", object);
  const sync::timeline_reader reader(page->page(), timeline);
  if (auto wait = counted.add(id, reader, condition, page)) {
    return std::move(*wait);
  }
  const auto deadline = base::deadline_after(timeout);
  // Another stream's wait may be met first.
  constexpr std::chrono::milliseconds attempt{10};
  do {
    const auto result =
        sync::wait(reader, condition, std::min(deadline, base::deadline_after(attempt)), stop);
    if (result == sync::wait_result::stopped) {
      throw cancelled({"wait", object});
    }
    if (result != sync::wait_result::timed_out) {
      return {};
    }
    if (auto wait = counted.add(id, reader, condition, page)) {
      return std::move(*wait);
    }
  } while (std::chrono::steady_clock::now() < deadline);
  throw too_many_waits("wait", object);
}

}  // namespace gpushm::client_detail
