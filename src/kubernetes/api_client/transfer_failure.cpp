// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/transfer_failure.hpp"

#include <fmt/core.h>

#include <new>

#include "base/files/syscall.hpp"

namespace gpushm::api_client {

namespace {

struct explanation {
  errc code;
  std::string cause;
  std::string next_step;
};

/// OpenSSL verification results that occur in clusters.
std::string_view verification_text(long result) {
  switch (result) {
    case 9:
      return "is not valid yet";
    case 10:
      return "has expired";
    case 18:
    case 19:
    case 20:
    case 21:
      return "is not signed by a trusted authority";
    default:
      return "is not trusted";
  }
}

/// For an authority with the expected name but another key, such as another cluster's, OpenSSL
/// reports an ASN.1 or RSA error, which libcurl treats as a TLS failure.
bool is_wrong_signature(std::string_view detail) {
  return detail.find("asn1 encoding routines") != std::string_view::npos ||
         detail.find("rsa routines") != std::string_view::npos ||
         detail.find("certificate verify failed") != std::string_view::npos;
}

explanation explain_verification(CURL* easy, const dialled_url& server) {
  long result = 0;
  curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &result);
  // libcurl compares names before it stores OpenSSL's result, which still has its initial value.
  if (result == 0 || result == 1) {
    return {errc::peer_unreachable,
            fmt::format("the certificate of {} is for another name", server.url),
            "use one of its names, or set the expected name (tls-server-name)"};
  }
  return {errc::peer_unreachable,
          fmt::format("the certificate of {} {}", server.url, verification_text(result)),
          result == 9 || result == 10 ? "renew it, and check the clocks of both machines"
                                      : "set the authority of this cluster (ca.crt)"};
}

explanation explain_wrong_authority(const dialled_url& server) {
  return {errc::peer_unreachable,
          fmt::format("the certificate of {} {}", server.url, verification_text(20)),
          "set the authority of this cluster (ca.crt)"};
}

explanation explain_connect(CURL* easy, const dialled_url& server) {
  long number = 0;
  curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number);
  std::string cause = "cannot connect to " + server.url;
  if (number != 0) {
    cause.append(": ").append(base::errno_text(static_cast<int>(number)));
  }
  return {errc::peer_unreachable,
          cause,
          "check that the API server runs and that its address is correct"};
}

explanation explain_timeout(CURL* easy, const dialled_url& server, const client_options& options) {
  curl_off_t ready = 0;
  curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &ready);
  if (ready == 0) {
    return {errc::timed_out,
            fmt::format("no connection to {} within {}",
                        server.url,
                        seconds_text(std::min(options.connect_timeout, options.request_timeout))),
            "check the network between here and the API server"};
  }
  return {errc::timed_out,
          "no reply within " + seconds_text(options.request_timeout),
          "check whether the API server is overloaded"};
}

explanation explain(CURLcode failure,
                    CURL* easy,
                    const dialled_url& server,
                    const client_options& options,
                    std::string_view detail) {
  switch (failure) {
    case CURLE_URL_MALFORMAT:
      return {errc::invalid_argument, "not a URL: " + server.url, "write https://HOST:PORT"};
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return {errc::peer_unreachable,
              fmt::format("the host name in {} cannot be resolved", server.url),
              "check the server's name, and the DNS that this machine or pod uses"};
    case CURLE_COULDNT_CONNECT:
      return explain_connect(easy, server);
    case CURLE_OPERATION_TIMEDOUT:
      return explain_timeout(easy, server, options);
    case CURLE_PEER_FAILED_VERIFICATION:
      return explain_verification(easy, server);
    case CURLE_SSL_CACERT_BADFILE:
      return {errc::peer_unreachable,
              "the authority file is missing or contains no certificate",
              "set the authority of this cluster (ca.crt)"};
    case CURLE_SSL_CERTPROBLEM:
      return {errc::invalid_argument,
              "the client certificate or its key cannot be used",
              "check that both are PEM and belong together"};
    case CURLE_SSL_CONNECT_ERROR:
      if (is_wrong_signature(detail)) {
        return explain_wrong_authority(server);
      }
      return {errc::peer_unreachable,
              fmt::format("no TLS with {}: {}", server.url, detail),
              "check that the port is the API server's"};
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_PARTIAL_FILE:
      return {
          errc::peer_unreachable,
          fmt::format("the connection to {} was lost before the response was complete", server.url),
          "try again; check the API server's log"};
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_HTTP_RETURNED_ERROR:
    case CURLE_BAD_CONTENT_ENCODING:
      return {errc::protocol_error,
              fmt::format("the server at {} does not use HTTP/1.1", server.url),
              "check that the URL is the API server's"};
    default:
      return {errc::peer_unreachable,
              fmt::format("the request to {} failed: {}",
                          server.url,
                          detail.empty() ? curl_easy_strerror(failure) : detail),
              "check the API server's log"};
  }
}

}  // namespace

std::string seconds_text(std::chrono::milliseconds time) {
  const auto whole = time.count() / 1'000;
  const auto tenths = time.count() % 1'000 / 100;
  return tenths == 0 ? fmt::format("{} s", whole) : fmt::format("{}.{} s", whole, tenths);
}

void throw_failure(CURLcode failure,
                   CURL* easy,
                   const dialled_url& server,
                   const client_options& options,
                   const http_request& request,
                   std::string_view detail) {
  if (failure == CURLE_OUT_OF_MEMORY) {
    throw std::bad_alloc();
  }
  const explanation found = explain(failure, easy, server, options, detail);
  throw error(found.code, request.operation, request.path, found.cause, found.next_step);
}

}  // namespace gpushm::api_client
