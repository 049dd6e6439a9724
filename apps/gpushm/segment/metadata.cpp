// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/metadata.hpp"

#include <cerrno>

#include "apps/gpushm/file_error.hpp"
#include "base/files/file.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

std::string read_metadata(const std::string& argument) {
  if (!argument.starts_with('@')) {
    return argument;
  }
  const std::string path = argument.substr(1);
  // One byte more than allowed, so that a larger file is detected.
  auto text = base::read_small_file(path, max_metadata_bytes + 1);
  if (!text) {
    throw_file_error(errno, "read metadata", path, "open");
  }
  if (text->size() > max_metadata_bytes) {
    throw error(errc::message_too_large,
                "read metadata",
                path,
                "the file is larger than the maximum size of metadata, 65536 bytes",
                "store large tables in the segment itself");
  }
  return *std::move(text);
}

}  // namespace gpushm::cli
