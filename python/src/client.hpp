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
  /// The socket and the domain of the first broker.
  std::string socket = {};
  std::string domain = {};
};

/// The Python object of a connection. Needs the GIL.
nanobind::object make_client(gpushm_client* client);

/// "leased" or "persistent". Raises ValueError. Needs the GIL.
gpushm_lifetime to_lifetime(const std::string& text);

/// "read" or "read-write". Raises ValueError. Needs the GIL.
gpushm_access to_access(const std::string& text);

/// Opens a published segment, without waiting for it; null: not published.
std::shared_ptr<gpushm_segment> open_now(const std::shared_ptr<gpushm_client>& client,
                                         const std::string& name,
                                         gpushm_access access,
                                         const std::string& device);

/// Parts of the class, for `register_client`.
void register_open_methods(nanobind::class_<client_object>& type);
void register_share_methods(nanobind::class_<client_object>& type);
void register_version_methods(nanobind::class_<client_object>& type);

void register_client(nanobind::module_& module);

}  // namespace gpushm_python
