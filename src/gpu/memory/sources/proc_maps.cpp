// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/sources/proc_maps.hpp"

#include <sys/sysmacros.h>

#include <ios>
#include <sstream>
#include <string>

namespace gpushm::memory {

std::optional<mapped_file> find_mapped_file(std::istream& maps,
                                            std::uint64_t first,
                                            std::uint64_t end) {
  std::optional<mapped_file> file;
  std::uint64_t next = first;  // the first byte not covered by any line yet
  std::string line;
  while (next < end && std::getline(maps, line)) {
    // proc(5): "start-end rights offset device inode   path"
    std::istringstream fields(line);
    std::uint64_t start = 0;
    std::uint64_t stop = 0;
    std::uint64_t offset = 0;
    std::uint64_t inode = 0;
    char dash = 0;
    std::string rights;
    unsigned int major_number = 0;
    unsigned int minor_number = 0;
    std::string path;
    fields >> std::hex >> start >> dash >> stop >> rights >> offset >> major_number >> dash >>
        minor_number >> std::dec >> inode;
    if (!fields || stop <= next) {
      continue;
    }
    if (start > next || inode == 0) {
      return std::nullopt;
    }
    std::getline(fields >> std::ws, path);
    const mapped_file here{makedev(major_number, minor_number),
                           inode,
                           offset + (next - start),
                           path.starts_with("/memfd:"),
                           rights.size() == 4 && rights[3] == 's'};
    if (!file) {
      file = here;
    } else if (here.device != file->device || here.inode != file->inode ||
               here.shared != file->shared || here.is_memfd != file->is_memfd ||
               here.offset_bytes != file->offset_bytes + (next - first)) {
      return std::nullopt;
    }
    next = stop;
  }
  return next >= end ? file : std::nullopt;
}

}  // namespace gpushm::memory
