// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "handle.hpp"

namespace gpushm_python {

/// gpushm.Client.
struct client_object {
  explicit client_object(gpushm_client* client) : handle(client, gpushm_client_close) {}
  closable<gpushm_client> handle;
};

/// "read" or "read-write". Raises ValueError. Needs the GIL.
gpushm_access to_access(const std::string& text);

/// Opens a published segment, without waiting for it; null: not published.
std::shared_ptr<gpushm_segment> open_now(const std::shared_ptr<gpushm_client>& client,
                                         const std::string& name,
                                         gpushm_access access,
                                         const std::string& device);

void register_client(nanobind::module_& module);

}  // namespace gpushm_python
