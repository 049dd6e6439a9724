// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/receipt_key.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr const char* operation = "read the key of receipts";
using key = std::array<std::uint8_t, crypto_auth_hmacsha256_KEYBYTES>;

base::unique_fd open_key(const std::string& path) {
  return base::unique_fd(
      base::retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW); }));
}

void create_key(const std::string& path) {
  key fresh;
  base::random_bytes(fresh);
  base::staged_file file(operation, path);
  file.write({reinterpret_cast<const char*>(fresh.data()), fresh.size()});
  file.commit();
}

key read_key(const std::string& path) {
  base::unique_fd file = open_key(path);
  if (!file && errno == ENOENT) {
    create_key(path);
    file = open_key(path);
  }
  if (!file) {
    base::throw_errno(errno, operation, path, "open");
  }
  struct stat status {};
  base::checked(operation, path, "fstat", [&] { return ::fstat(file.get(), &status); });
  constexpr mode_t not_the_owner = 077;
  key result;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & not_the_owner) != 0 ||
      base::retry([&] { return ::read(file.get(), result.data(), result.size()); }) !=
          static_cast<ssize_t>(result.size())) {
    throw error(errc::invalid_argument,
                operation,
                path,
                "it is not a file of 32 bytes that only this user can read",
                "remove it: a new one is made, and members cannot hand back what they have now");
  }
  return result;
}

}  // namespace

succession::authenticator authenticator_of(const std::string& path) {
  if (::sodium_init() == -1) {
    throw error(errc::system_error,
                operation,
                path,
                "libsodium cannot be initialized",
                "check that this process may read random bytes");
  }
  return [secret = read_key(path)](std::span<const std::byte> bytes) {
    wire::receipt result;
    static_assert(result.size() == crypto_auth_hmacsha256_BYTES);
    ::crypto_auth_hmacsha256(reinterpret_cast<unsigned char*>(result.data()),
                             reinterpret_cast<const unsigned char*>(bytes.data()),
                             bytes.size(),
                             secret.data());
    return result;
  };
}

}  // namespace gpushm::domains
