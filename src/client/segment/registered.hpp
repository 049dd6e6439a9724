// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "client/lease/lease_table.hpp"
#include "client/lease/segment_lease.hpp"
#include "client/session/fork_guard.hpp"
#include "gpushm/descriptor.h"

namespace gpushm::client_detail {

/// A process's description of a descriptor that it registers: the metadata of the registration, as
/// docs/protocol.md describes it. The broker does not read it.
struct registered_facts {
  std::uint64_t tag = 0;
  std::uint64_t pid_namespace = 0;
  std::int32_t pid = 0;  ///< in that namespace
  gpushm_descriptor_kind kind = GPUSHM_DESCRIPTOR_FILE;
  std::string comm;  ///< at most 15 bytes
  friend bool operator==(const registered_facts&, const registered_facts&) = default;
};

[[nodiscard]] std::vector<std::byte> encode(const registered_facts& facts);
/// Returns nullopt for bytes of another format.
[[nodiscard]] std::optional<registered_facts> decode_facts(std::span<const std::byte> bytes);

/// What another process, or this one, has registered.
struct resolved_descriptor {
  base::unique_fd file;
  registered_facts facts;
  std::int32_t creator_pid = 0;  ///< as the broker sees it
  std::uint32_t creator_uid = 0;
};

}  // namespace gpushm::client_detail

/// A registration: the handle of the C interface.
struct gpushm_descriptor {
 public:
  gpushm_descriptor(std::shared_ptr<gpushm::client_detail::lease_table> leases,
                    std::shared_ptr<gpushm::client_detail::segment_lease> lease,
                    std::uint32_t number) noexcept
      : leases_(std::move(leases)), lease_(std::move(lease)), number_(number) {}
  gpushm_descriptor(const gpushm_descriptor&) = delete;
  gpushm_descriptor& operator=(const gpushm_descriptor&) = delete;
  ~gpushm_descriptor() {
    if (forks_ != gpushm::client_detail::fork_count()) {
      gpushm::client_detail::leak(lease_);
      gpushm::client_detail::leak(leases_);
    }
  }

  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

 private:
  std::uint64_t forks_ = gpushm::client_detail::fork_count();
  std::shared_ptr<gpushm::client_detail::lease_table> leases_;  // destroyed after the lease
  std::shared_ptr<gpushm::client_detail::segment_lease> lease_;
  std::uint32_t number_;
};
