// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <curl/curl.h>

#include <memory>

#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

struct easy_deleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct multi_deleter {
  void operator()(CURLM* handle) const { curl_multi_cleanup(handle); }
};
struct list_deleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using easy_handle = std::unique_ptr<CURL, easy_deleter>;
using multi_handle = std::unique_ptr<CURLM, multi_deleter>;
using header_list = std::unique_ptr<curl_slist, list_deleter>;

/// libcurl's handles for one transfer at a time to one server, with the TCP connections kept
/// between transfers. The access must outlive it. Throws `std::bad_alloc`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class connection {
 public:
  connection(const server_access& access, const client_options& options);

  [[nodiscard]] CURL* easy() const noexcept { return easy_.get(); }
  [[nodiscard]] CURLM* multi() const noexcept { return multi_.get(); }

 private:
  // Destroyed after the transfers, whose connections it keeps.
  multi_handle multi_;
  easy_handle easy_;
};

/// The URL and connect address for curl. When the certificate's name differs from the URL's, the
/// URL gets that name, and `connect_to` the real address.
struct dialled_url {
  std::string url;         ///< without a slash at its end
  std::string connect_to;  ///< for CURLOPT_CONNECT_TO; empty: as in the URL
  std::string host;        ///< for an explicit Host header; empty: as in the URL
};
/// Throws `error` (invalid_argument) unless the URL is http or https.
[[nodiscard]] dialled_url dialled(const server_access& access);

}  // namespace gpushm::api_client
