// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/certificates.hpp"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <stdexcept>

#include "tests/support/fake_kube_api/openssl_owners.hpp"

namespace gpushm::testing {

namespace {

using extension_pointer = std::unique_ptr<X509_EXTENSION, freed_by<X509_EXTENSION_free>>;

template <typename Pointer>
Pointer created(Pointer pointer) {
  if (!pointer) {
    throw std::runtime_error("OpenSSL cannot create a test certificate");
  }
  return pointer;
}

void done(int result) {
  if (result <= 0) {
    throw std::runtime_error("OpenSSL cannot create a test certificate");
  }
}

key_pointer new_key() {
  return created(key_pointer(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")));
}

/// Valid for a year from yesterday; not signed yet.
certificate_pointer new_certificate(EVP_PKEY* key, const std::string& name) {
  certificate_pointer made_now = created(certificate_pointer(X509_new()));
  X509* const certificate = made_now.get();
  std::array<unsigned char, 8> serial{};
  done(RAND_bytes(serial.data(), static_cast<int>(serial.size())));
  std::uint64_t number = 0;
  for (const unsigned char byte : serial) {
    number = number << 8U | byte;
  }
  done(X509_set_version(certificate, X509_VERSION_3));
  done(ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), number));
  constexpr long day = 24L * 60 * 60;
  X509_gmtime_adj(X509_getm_notBefore(certificate), -day);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 365 * day);
  done(X509_set_pubkey(certificate, key));
  done(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate),
                                  "CN",
                                  MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(name.c_str()),
                                  -1,
                                  -1,
                                  0));
  return made_now;
}

void extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const extension_pointer extension =
      created(extension_pointer(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str())));
  done(X509_add_ext(certificate, extension.get(), -1));
}

std::string text_of(const bio_pointer& bio) {
  char* start = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &start);
  return {start, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const bio_pointer bio = created(bio_pointer(BIO_new(BIO_s_mem())));
  done(PEM_write_bio_X509(bio.get(), certificate));
  return text_of(bio);
}

std::string pem_of(EVP_PKEY* key) {
  const bio_pointer bio = created(bio_pointer(BIO_new(BIO_s_mem())));
  done(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr));
  return text_of(bio);
}

std::string alternative_names(const std::vector<std::string>& names) {
  std::string text;
  std::array<unsigned char, 16> address{};
  for (const std::string& name : names) {
    const bool is_address = ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
                            ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
    text.append(text.empty() ? "" : ",").append(is_address ? "IP:" : "DNS:").append(name);
  }
  return text;
}

}  // namespace

struct test_authority::parts {
  key_pointer key;
  certificate_pointer certificate;

  [[nodiscard]] identity_pem sign(const std::string& name,
                                  const std::string& usage,
                                  const std::string& names) const {
    const key_pointer own = new_key();
    const certificate_pointer signed_one = new_certificate(own.get(), name);
    done(X509_set_issuer_name(signed_one.get(), X509_get_subject_name(certificate.get())));
    extend(signed_one.get(), certificate.get(), NID_basic_constraints, "critical,CA:FALSE");
    extend(signed_one.get(), certificate.get(), NID_ext_key_usage, usage);
    if (!names.empty()) {
      extend(signed_one.get(), certificate.get(), NID_subject_alt_name, names);
    }
    done(X509_sign(signed_one.get(), key.get(), EVP_sha256()));
    return {pem_of(signed_one.get()), pem_of(own.get())};
  }
};

test_authority::test_authority(const std::string& name) : parts_(std::make_unique<parts>()) {
  parts_->key = new_key();
  parts_->certificate = new_certificate(parts_->key.get(), name);
  X509* const own = parts_->certificate.get();
  done(X509_set_issuer_name(own, X509_get_subject_name(own)));
  extend(own, own, NID_basic_constraints, "critical,CA:TRUE");
  extend(own, own, NID_key_usage, "critical,keyCertSign");
  done(X509_sign(own, parts_->key.get(), EVP_sha256()));
  pem_ = pem_of(own);
}

test_authority::~test_authority() = default;

identity_pem test_authority::issue_server(const std::vector<std::string>& names) const {
  return parts_->sign("kube-apiserver", "serverAuth", alternative_names(names));
}

identity_pem test_authority::issue_client(const std::string& name) const {
  return parts_->sign(name, "clientAuth", {});
}

}  // namespace gpushm::testing
