// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string_view>

#include "client/timeline/timeline_pages.hpp"
#include "gpu/driver/cuda_abi.hpp"
#include "gpu/streams/waiting_streams.hpp"
#include "gpushm/error.hpp"
#include "sync/word.hpp"

namespace gpushm::client_detail {

/// How long closing something waits for streams that still have to store values.
inline constexpr std::chrono::milliseconds close_limit{1'000};

/// Counts a wait that will be enqueued on `stream`: to be committed when it was. Streams that wait
/// are scarce: if this one would be one too many, waits for the value on the CPU first, at most
/// `timeout`. Throws too_many_waits, cancelled (`stop` was requested before), driver_error.
/// Precondition: the stream is not captured.
[[nodiscard]] streams::counted_wait await_stream_turn(cuda::CUstream stream,
                                                      const std::shared_ptr<mapped_page>& page,
                                                      std::uint32_t timeline,
                                                      const sync::condition& condition,
                                                      std::chrono::milliseconds timeout,
                                                      std::string_view object,
                                                      const std::stop_token& stop = {});

/// The error of a call that may not wait for its turn any longer.
[[nodiscard]] error too_many_waits(std::string_view operation, std::string_view object);

}  // namespace gpushm::client_detail
