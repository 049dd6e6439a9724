// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::keeper {

struct named_descriptor {
  std::string name;
  base::unique_fd descriptor;
};

/// The first descriptor that a started program inherits (sd_listen_fds(3)).
inline constexpr int first_inherited = 3;
/// Names that are too long for an environment variable are in a file: this variable has its number.
inline constexpr const char* names_variable = "LISTEN_FDNAMES";
inline constexpr const char* names_file_variable = "GPUSHM_LISTEN_FDNAMES_FD";

/// The descriptors that systemd or `keeper` has passed to this program, in no particular order;
/// empty: none. They become close-on-exec, and the variables are removed, so that no child takes
/// them for its own. Call once, before threads exist. Throws `error`: invalid_argument if the
/// variables contradict each other.
[[nodiscard]] std::vector<named_descriptor> take_inherited_descriptors();

}  // namespace gpushm::keeper
