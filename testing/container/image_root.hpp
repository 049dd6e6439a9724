// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm_testing {

/// Makes the directory `root` (whose parent is there) what a very small image is: /bin/sh, the
/// libraries that it, the project's command and `others` need (programs or libraries that will be
/// mounted), and empty directories to mount onto. Throws `harness_error` or
/// std::filesystem::filesystem_error.
void make_image_root(const std::string& root, const std::vector<std::string>& others = {});

}  // namespace gpushm_testing
