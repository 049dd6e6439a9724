// SPDX-License-Identifier: Apache-2.0
#include "client/segment/client_impl.hpp"

#include <utility>

#include "base/segments/versioned_names.hpp"
#include "client/lease/socket_path.hpp"
#include "client/segment/segment_impl.hpp"

namespace gpushm::client_detail {

namespace {

connect_options with_socket(connect_options options) {
  if (options.socket_path.empty()) {
    options.socket_path = chosen_socket_path();
  }
  if (!options.socket_path.empty()) {  // else the link searches for a broker
    options.socket_path = absolute_socket_path(options.socket_path);
  }
  for (const std::string& name : options.prefetch) {
    base::check_segment_name("connect", name);
  }
  if (!options.prefetch.empty() && bounds_from(options.cache).max_entries == 0) {
    options.prefetch.clear();  // would not be kept
  }
  return options;
}

}  // namespace

client_impl::client_impl(connect_options options)
    : options_(with_socket(std::move(options))),
      link_(std::make_shared<broker_link>(
          options_, std::make_shared<lease_table>(bounds_from(options_.cache)))),
      leases_(link_, &link_->leases()) {
  options_.socket_path = link_->socket_path();
  if (!options_.prefetch.empty()) {
    prefetch_names();
  }
}

client_impl::~client_impl() {
  if (!forked()) {
    leases_->close();
  }
}

segment_ptr client_impl::user_of(std::shared_ptr<mapping> used) {
  return handle_of_use(link_, std::move(used), options_.request_limit);
}

}  // namespace gpushm::client_detail
