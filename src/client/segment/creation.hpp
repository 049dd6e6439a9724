// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "client/lease/segment_lease.hpp"
#include "client/session/connection.hpp"
#include "client/session/reply.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Sends the reservation. Waits a few seconds for the name of a dead process that may still write.
/// Throws as a request, cancelled if `stop` is requested meanwhile.
[[nodiscard]] reply reserve_name(connection& broker,
                                 const wire::reserve& reserve,
                                 const subject& about,
                                 steady_time deadline,
                                 const std::stop_token& stop);

/// Attaches all chunks in batches; closes each batch's descriptors once it is sent, unless the
/// lease keeps them, so that a process with few descriptors can share many chunks. `Exporter` has
/// `export_chunk(index)`, `size_of(index)`.
template <typename Exporter, typename SizeOf>
void attach_chunks(segment_lease& lease,
                   Exporter& memory,
                   std::uint32_t count,
                   SizeOf&& size_of,
                   std::string_view operation,
                   steady_time deadline) {
  auto kept = lease.begin_keeping();
  for (std::uint32_t first = 0; first < count;) {
    const std::uint32_t end =
        std::min<std::uint32_t>(count, first + static_cast<std::uint32_t>(wire::max_batch));
    std::vector<base::guarded_fd> chunks;
    std::vector<int> numbers;
    wire::attach batch{lease.generation(), first, {}};
    for (std::uint32_t i = first; i < end; ++i) {
      chunks.push_back(memory.export_chunk(i));
      numbers.push_back(chunks.back().get());
      batch.chunk_bytes.push_back(size_of(i));
    }
    static_cast<void>(
        lease.broker()->request(batch, {operation, lease.info().name}, deadline, numbers));
    if (kept) {
      std::move(chunks.begin(), chunks.end(), std::back_inserter(kept->files));
      kept->bytes.insert(kept->bytes.end(), batch.chunk_bytes.begin(), batch.chunk_bytes.end());
    }
    first = end;
  }
  if (kept) {
    lease.finish_keeping(std::move(*kept));
  }
}

}  // namespace gpushm::client_detail
