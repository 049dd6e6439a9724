// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "succession/recorder/segment_ledger.hpp"

namespace gpushm::domains {

/// HMAC-SHA256 (RFC 2104, by libsodium) with the key in the file at `path`, which is created if it
/// does not exist: 32 random bytes, mode 0600. Without the file, what earlier brokers have issued
/// is no longer valid. Throws `error`: invalid_argument (it is not such a file, or another user can
/// read it), system_error.
[[nodiscard]] succession::authenticator authenticator_of(const std::string& path);

}  // namespace gpushm::domains
