// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/connection.hpp"

#include <fmt/core.h>

#include <mutex>
#include <new>

#include "base/text/quoted.hpp"

namespace gpushm::api_client {

namespace {

void prepare_library() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

/// Every supported libcurl has the options used here, so only running out of memory can fail.
template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  if (curl_easy_setopt(handle, option, value) == CURLE_OUT_OF_MEMORY) {
    throw std::bad_alloc();
  }
}

void set_text(CURL* handle, CURLoption option, const std::string& value) {
  set(handle, option, value.empty() ? nullptr : value.c_str());
}

void set_blob(CURL* handle, CURLoption option, const std::string& pem) {
  if (!pem.empty()) {
    // libcurl does not modify the data, although its type lacks const; the client owns it.
    curl_blob blob{const_cast<char*>(pem.data()), pem.size(), CURL_BLOB_NOCOPY};
    set(handle, option, &blob);
  }
}

void set_trust(CURL* handle, const server_access& access) {
  if (!access.authority_file.empty() || !access.authority_pem.empty()) {
    // Otherwise the system's authorities would also be trusted.
    set(handle, CURLOPT_CAPATH, nullptr);
    set(handle, CURLOPT_CAINFO, nullptr);
    set_text(handle, CURLOPT_CAINFO, access.authority_file);
    if (access.authority_file.empty()) {
      set_blob(handle, CURLOPT_CAINFO_BLOB, access.authority_pem);
    }
#if LIBCURL_VERSION_NUM >= 0x075700
    // The file is read for each new connection, so that it can be rotated.
    set(handle, CURLOPT_CA_CACHE_TIMEOUT, 0L);
#endif
  }
  set(handle, CURLOPT_SSL_VERIFYPEER, access.verify ? 1L : 0L);
  set(handle, CURLOPT_SSL_VERIFYHOST, access.verify ? 2L : 0L);
}

void set_identity(CURL* handle, const server_access& access) {
  set_text(handle, CURLOPT_SSLCERT, access.certificate_file);
  set_text(handle, CURLOPT_SSLKEY, access.key_file);
  if (access.certificate_file.empty()) {
    set_blob(handle, CURLOPT_SSLCERT_BLOB, access.certificate_pem);
  }
  if (access.key_file.empty()) {
    set_blob(handle, CURLOPT_SSLKEY_BLOB, access.key_pem);
  }
}

void set_proxy(CURL* handle, const std::string& url) {
  // A pod reaches its API server without the proxy of $https_proxy.
  set(handle, CURLOPT_PROXY, url.c_str());
  set(handle, CURLOPT_NOPROXY, url.empty() ? "*" : "");
}

}  // namespace

connection::connection(const server_access& access, const client_options& options) {
  prepare_library();
  multi_.reset(curl_multi_init());
  easy_.reset(curl_easy_init());
  if (!multi_ || !easy_) {
    throw std::bad_alloc();
  }
  CURL* const handle = easy_.get();
  // Signal handling belongs to the program.
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
#if LIBCURL_VERSION_NUM >= 0x075500
  set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
#endif
  set(handle, CURLOPT_FOLLOWLOCATION, 0L);
  set(handle, CURLOPT_PATH_AS_IS, 1L);
  set(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  set(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set_text(handle, CURLOPT_USERAGENT, options.user_agent);
  set_trust(handle, access);
  set_identity(handle, access);
  set_proxy(handle, access.proxy_url);
  curl_multi_setopt(multi_.get(), CURLMOPT_MAXCONNECTS, 1L);
}

dialled_url dialled(const server_access& access) {
  std::string url = access.url;
  while (url.ends_with('/')) {
    url.pop_back();
  }
  const bool secured = url.starts_with("https://");
  const std::size_t start = secured ? 8 : 7;
  if ((!secured && !url.starts_with("http://")) || url.size() <= start) {
    throw error(errc::invalid_argument,
                "connect to the API server",
                access.url,
                "not an http or https URL",
                "write https://HOST:PORT");
  }
  if (access.server_name.empty()) {
    return {url, {}, {}};
  }
  const std::size_t path = std::min(url.find('/', start), url.size());
  const std::string authority = url.substr(start, path - start);
  const std::size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string::npos && authority.find(']', colon) == std::string::npos;
  const std::string host = has_port ? authority.substr(0, colon) : authority;
  const std::string port = has_port ? authority.substr(colon + 1) : secured ? "443" : "80";
  dialled_url result;
  result.url =
      fmt::format("{}{}:{}{}", url.substr(0, start), access.server_name, port, url.substr(path));
  result.connect_to = fmt::format("::{}:{}", host, port);
  result.host = authority;
  return result;
}

}  // namespace gpushm::api_client
