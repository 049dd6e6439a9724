// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm_testing {

/// Populates the directory `root` (whose parent exists) as a minimal image: /bin/sh, the libraries
/// that it, the project's command and `others` need (programs or libraries that will be mounted),
/// and empty directories as mount points. Throws `harness_error` or
/// std::filesystem::filesystem_error.
void make_image_root(const std::string& root, const std::vector<std::string>& others = {});

}  // namespace gpushm_testing
