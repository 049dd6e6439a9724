// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "client/lease/segment_lease.hpp"
#include "client/session/connection.hpp"
#include "gpu/memory/backends/backend.hpp"

namespace gpushm::client_detail {

/// The chunks of a segment that this process leases: those that came with the reply, and further
/// ones from the broker. Requests the next batch before it hands out the chunks of one, so that it
/// arrives while they are mapped.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class chunk_stream final : public memory::chunk_source {
 public:
  struct batch {
    std::vector<std::uint64_t> bytes;  ///< of `files`
    std::vector<base::guarded_fd> files;
  };
  /// `first` may be empty. `timeout` is for each batch.
  chunk_stream(std::shared_ptr<segment_lease> lease, batch first, std::chrono::milliseconds timeout)
      : lease_(std::move(lease)),
        timeout_(timeout),
        now_(std::move(first)),
        kept_(lease_->begin_keeping()) {}

  /// Throws the broker's failure, protocol_error, broker_gone, timed_out.
  [[nodiscard]] std::optional<chunk> next() override;

 private:
  /// Number of chunks received.
  [[nodiscard]] std::uint32_t arrived() const noexcept {
    return before_ + static_cast<std::uint32_t>(now_.files.size());
  }
  void ask();
  void receive();
  void keep(const chunk& chunk);

  std::shared_ptr<segment_lease> lease_;
  std::chrono::milliseconds timeout_;
  batch now_;
  std::size_t taken_ = 0;     ///< number of `now_` handed out
  std::uint32_t before_ = 0;  ///< number of chunks before those of `now_`
  /// Copies of those handed out, if the lease keeps them.
  std::optional<segment_lease::kept_chunks> kept_;
  std::shared_ptr<connection> broker_;        ///< of `asked_`
  std::unique_ptr<connection::ahead> asked_;  // destroyed before its connection
};

}  // namespace gpushm::client_detail
