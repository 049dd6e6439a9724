// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/tensors.hpp"

namespace gpushm::tensors {

/// Loads a model into the persistent segment `name`, once for all that call this at the same time:
/// one process reads, the others wait. If it dies, one of them continues after its fence, from the
/// last piece that was copied and hashed (docs/adr/0034). Returns the segment, open for reading,
/// when it is complete, at once if it is: without opening a file if their stamps are known; else
/// after all have been read and compared (docs/tensors.md). If the broker ends without a takeover,
/// continues with the next broker, for which it waits at most 30 s. Throws `error`: as
/// `open_model`, `client::create` and `client::open`; already_exists (the name has another model,
/// other contents of these files, or something else), timed_out, cancelled.
[[nodiscard]] segment load(client& client,
                           const std::string& name,
                           const std::vector<std::string>& paths,
                           const load_options& options);

/// Opens a segment with tensors for reading when it is complete; waits for that, and for its name,
/// at most the options' timeout, also for the next broker as `load`. Throws `error`:
/// invalid_argument (a segment without tensors), timed_out (it is still loaded, or its loader has
/// died), and as `client::open`.
[[nodiscard]] segment open_complete(client& client,
                                    const std::string& name,
                                    const open_options& options);

}  // namespace gpushm::tensors
