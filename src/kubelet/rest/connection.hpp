// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <curl/curl.h>

#include <memory>

#include "kubelet/rest/client.hpp"

namespace gpushm::kube {

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

/// libcurl's handles for one transfer at a time, with the TCP connections that it keeps between
/// them, set up for a server. The access must outlive it. Throws `std::bad_alloc`.
///
/// Distinct objects: safe. Shared objects: unsafe.
class connection {
 public:
  connection(const server_access& access, const client_options& options);

  [[nodiscard]] CURL* easy() const noexcept { return easy_.get(); }
  [[nodiscard]] CURLM* multi() const noexcept { return multi_.get(); }

 private:
  // The transfers go before what keeps their connections.
  multi_handle multi_;
  easy_handle easy_;
};

/// Where curl must really connect when the certificate is for another name than the URL's: the URL
/// gets that name, and this says where it leads.
struct dialled_url {
  std::string url;         ///< without a slash at its end
  std::string connect_to;  ///< for CURLOPT_CONNECT_TO; empty: the URL says it
  std::string host;        ///< for a Host header of its own; empty: the URL says it
};
/// Throws `error` (invalid_argument) for what is no http or https URL.
[[nodiscard]] dialled_url dialled(const server_access& access);

}  // namespace gpushm::kube
