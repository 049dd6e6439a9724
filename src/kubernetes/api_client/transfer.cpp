// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/transfer.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>

#include "base/text/size_text.hpp"
#include "kubernetes/api_client/transfer_failure.hpp"

namespace gpushm::api_client {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t max_head_bytes = 65'536;
// Limit for the bytes that libcurl reads between two calls of `deliver`.
constexpr std::size_t max_unread_bytes = 8UL << 20U;

/// libcurl does not suppress SIGPIPE when it may not use signals, and TLS uses write(2).
class sigpipe_blocker {
 public:
  sigpipe_blocker() {
    sigemptyset(&pipes_);
    sigaddset(&pipes_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipes_, &before_);
  }
  sigpipe_blocker(const sigpipe_blocker&) = delete;
  sigpipe_blocker& operator=(const sigpipe_blocker&) = delete;
  ~sigpipe_blocker() {
    if (!was_pending_) {
      const timespec no_time{};
      static_cast<void>(::sigtimedwait(&pipes_, nullptr, &no_time));
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipes_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

/// One run of a request through libcurl's handles. Callbacks only collect; handlers, which may
/// throw, are called between them.
class transfer {
 public:
  transfer(connection& over,
           const dialled_url& server,
           const client_options& options,
           const http_request& request,
           const stream_handlers* streamed)
      : over_(over), server_(server), options_(options), request_(request), streamed_(streamed) {
    set_up();
    curl_multi_add_handle(over_.multi(), over_.easy());
  }
  transfer(const transfer&) = delete;
  transfer& operator=(const transfer&) = delete;
  ~transfer() { curl_multi_remove_handle(over_.multi(), over_.easy()); }

  http_response run(const std::stop_token& stop) {
    CURLM* const multi = over_.multi();
    const std::stop_callback wake(stop, [multi] { curl_multi_wakeup(multi); });
    const sigpipe_blocker quiet;
    deadline_ = clock::now() + options_.request_timeout;
    while (!stop.stop_requested()) {
      int running = 0;
      curl_multi_perform(multi, &running);
      deliver();
      if (running == 0) {
        return finish();
      }
      check_deadline();
      curl_multi_poll(multi, nullptr, 0, milliseconds_left(), nullptr);
    }
    fail(errc::timed_out, "stopped before the response arrived", {});
  }

 private:
  void set_up() {
    CURL* const easy = over_.easy();
    curl_easy_setopt(easy, CURLOPT_URL, (server_.url + request_.target).c_str());
    if (request_.body) {
      curl_easy_setopt(easy, CURLOPT_POST, 1L);
      curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request_.body->data());
      curl_easy_setopt(
          easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body->size()));
      add_header("Content-Type: application/json");
      add_header("Expect:");
    } else {
      curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    add_header("Accept: application/json");
    if (!request_.token.empty()) {
      add_header("Authorization: Bearer " + request_.token);
    }
    if (!server_.host.empty()) {
      add_header("Host: " + server_.host);
    }
    if (!server_.connect_to.empty()) {
      append(connect_to_, server_.connect_to);
    }
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(easy, CURLOPT_CONNECT_TO, connect_to_.get());
    curl_easy_setopt(
        easy,
        CURLOPT_TIMEOUT_MS,
        streamed_ != nullptr ? 0L : static_cast<long>(options_.request_timeout.count()));
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail_.data());
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &transfer::append_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &transfer::append_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  }

  static void append(header_list& list, const std::string& text) {
    curl_slist* const longer = curl_slist_append(list.get(), text.c_str());
    if (longer == nullptr) {
      throw std::bad_alloc();
    }
    static_cast<void>(list.release());
    list.reset(longer);
  }
  void add_header(const std::string& text) { append(headers_, text); }

  static std::size_t append_header(char* data, std::size_t /*unit*/, std::size_t size, void* own) {
    auto& self = *static_cast<transfer*>(own);
    self.head_bytes_ += size;
    self.head_is_too_large_ = self.head_bytes_ > max_head_bytes;
    if (size <= 2 && (data[0] == '\r' || data[0] == '\n')) {
      self.has_head_ = self.status() >= 200;
    }
    return self.head_is_too_large_ ? 0 : size;
  }

  static std::size_t append_body(char* data, std::size_t /*unit*/, std::size_t size, void* own) {
    auto& self = *static_cast<transfer*>(own);
    const std::size_t max =
        self.is_streamed() ? max_unread_bytes : self.options_.max_response_bytes;
    if (self.body_.size() + size > max) {
      self.body_is_too_large_ = true;
      return 0;
    }
    self.body_.append(data, size);
    return size;
  }

  [[nodiscard]] int status() const {
    long status = 0;
    curl_easy_getinfo(over_.easy(), CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }
  [[nodiscard]] bool is_streamed() const { return streamed_ != nullptr && status() == 200; }

  void deliver() {
    if (!has_head_ || !is_streamed()) {
      return;
    }
    if (!opened_) {
      opened_ = true;
      deadline_ = clock::now() + streamed_->silence;
      streamed_->opened();
    }
    if (!body_.empty()) {
      const std::string bytes = std::exchange(body_, {});
      if (streamed_->bytes(bytes)) {
        deadline_ = clock::now() + streamed_->silence;
      }
    }
  }

  http_response finish() {
    int left = 0;
    CURLcode result = CURLE_OK;
    while (const CURLMsg* message = curl_multi_info_read(over_.multi(), &left)) {
      result = message->data.result;
    }
    if (head_is_too_large_) {
      fail(errc::message_too_large,
           "the response header exceeds 64 KiB",
           "check that the URL is the API server's");
    }
    if (body_is_too_large_) {
      fail(errc::message_too_large,
           "the reply exceeds " + base::size_text(options_.max_response_bytes),
           "request less data");
    }
    if (result != CURLE_OK) {
      throw_failure(result, over_.easy(), server_, options_, request_, detail_.data());
    }
    return reply();
  }

  http_response reply() {
    CURL* const easy = over_.easy();
    http_response response;
    response.status = status();
    const char* text = nullptr;
    if (curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &text) == CURLE_OK && text != nullptr) {
      response.content_type = text;
    }
    if (curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &text) == CURLE_OK && text != nullptr) {
      response.location = text;
    }
    curl_off_t wait = 0;
    curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &wait);
    response.retry_after = std::chrono::seconds(std::clamp<curl_off_t>(wait, 0, 3'600));
    response.body = std::move(body_);
    return response;
  }

  void check_deadline() const {
    if (streamed_ == nullptr || clock::now() < deadline_) {
      return;
    }
    if (!opened_) {
      throw_failure(CURLE_OPERATION_TIMEDOUT, over_.easy(), server_, options_, request_, {});
    }
    fail(errc::timed_out,
         "no data on the stream for " + seconds_text(streamed_->silence),
         "check whether the API server is overloaded");
  }

  [[nodiscard]] int milliseconds_left() const {
    constexpr std::chrono::milliseconds max{1'000};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock::now());
    return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), max).count());
  }

  [[noreturn]] void fail(errc code, std::string_view cause, std::string_view next_step) const {
    throw error(code, request_.operation, request_.path, cause, next_step);
  }

  connection& over_;
  const dialled_url& server_;
  const client_options& options_;
  const http_request& request_;
  const stream_handlers* streamed_;
  header_list headers_;
  header_list connect_to_;
  std::array<char, CURL_ERROR_SIZE> detail_{};
  std::size_t head_bytes_ = 0;
  bool head_is_too_large_ = false;
  bool has_head_ = false;
  bool opened_ = false;
  bool body_is_too_large_ = false;
  std::string body_;
  clock::time_point deadline_;
};

}  // namespace

http_response exchange(connection& over,
                       const dialled_url& server,
                       const client_options& options,
                       const http_request& request,
                       const stream_handlers* streamed,
                       const std::stop_token& stop) {
  return transfer(over, server, options, request, streamed).run(stop);
}

}  // namespace gpushm::api_client
