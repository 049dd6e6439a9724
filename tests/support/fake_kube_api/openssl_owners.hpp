// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace gpushm::testing {

template <auto Free>
struct freed_by {
  template <typename Value>
  void operator()(Value* value) const {
    Free(value);
  }
};
using bio_pointer = std::unique_ptr<BIO, freed_by<BIO_free_all>>;
using certificate_pointer = std::unique_ptr<X509, freed_by<X509_free>>;
using key_pointer = std::unique_ptr<EVP_PKEY, freed_by<EVP_PKEY_free>>;

}  // namespace gpushm::testing
