// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/connection.hpp"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <stdexcept>

#include "base/files/syscall.hpp"
#include "tests/support/fake_kube_api/openssl_owners.hpp"

namespace gpushm::testing {

namespace {

bio_pointer reader_of(const std::string& text) {
  return bio_pointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

certificate_pointer certificate_of(const std::string& pem) {
  const bio_pointer bio = reader_of(pem);
  return certificate_pointer(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

void require(bool worked) {
  if (!worked) {
    throw std::runtime_error("OpenSSL does not accept the test certificate");
  }
}

}  // namespace

struct tls_settings::context {
  std::unique_ptr<SSL_CTX, freed_by<SSL_CTX_free>> value;
};

tls_settings::tls_settings(const identity_pem& own,
                           const std::string& client_authority,
                           bool required)
    : context_(std::make_unique<context>()) {
  context_->value.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* const settings = context_->value.get();
  require(settings != nullptr);
  require(SSL_CTX_use_certificate(settings, certificate_of(own.certificate).get()) == 1);
  const bio_pointer bio = reader_of(own.key);
  const key_pointer key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  require(SSL_CTX_use_PrivateKey(settings, key.get()) == 1);
  require(X509_STORE_add_cert(SSL_CTX_get_cert_store(settings),
                              certificate_of(client_authority).get()) == 1);
  SSL_CTX_set_verify(
      settings, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
}

tls_settings::~tls_settings() = default;

struct server_connection::secured {
  std::unique_ptr<SSL, freed_by<SSL_free>> value;
};

server_connection::server_connection(base::unique_fd socket,
                                     const tls_settings* tls,
                                     std::size_t number)
    : socket_(std::move(socket)), number_(number) {
  timeval longest{};
  longest.tv_sec = 60;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
  if (tls != nullptr) {
    secured_ = std::make_unique<secured>();
    secured_->value.reset(SSL_new(tls->context_->value.get()));
    require(secured_->value != nullptr && SSL_set_fd(secured_->value.get(), socket_.get()) == 1);
  }
}

server_connection::~server_connection() = default;

bool server_connection::accept() {
  return secured_ == nullptr || SSL_accept(secured_->value.get()) == 1;
}

std::string server_connection::client_name() const {
  if (secured_ == nullptr) {
    return {};
  }
  X509* const peer = SSL_get0_peer_certificate(secured_->value.get());
  if (peer == nullptr) {
    return {};
  }
  std::array<char, 256> name{};
  const int size = X509_NAME_get_text_by_NID(
      X509_get_subject_name(peer), NID_commonName, name.data(), static_cast<int>(name.size()));
  return size > 0 ? std::string(name.data(), static_cast<std::size_t>(size)) : std::string();
}

std::string server_connection::read() {
  std::string bytes(16'384, '\0');
  const auto got =
      secured_ != nullptr
          ? static_cast<ssize_t>(
                SSL_read(secured_->value.get(), bytes.data(), static_cast<int>(bytes.size())))
          : base::retry([&] { return ::recv(socket_.get(), bytes.data(), bytes.size(), 0); });
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

bool server_connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent =
        secured_ != nullptr
            ? static_cast<ssize_t>(
                  SSL_write(secured_->value.get(), bytes.data(), static_cast<int>(bytes.size())))
            : base::retry(
                  [&] { return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool server_connection::peer_gone() const {
  pollfd look{socket_.get(), POLLRDHUP, 0};
  return ::poll(&look, 1, 0) > 0;
}

void server_connection::cut() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace gpushm::testing
