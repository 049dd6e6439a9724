// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm_testing {

/// Makes the directory `root` (whose parent is there) what a very small image is: /bin/sh, the
/// libraries that it and the project's command need, and empty directories to mount onto. Throws
/// `harness_error` or std::filesystem::filesystem_error.
void make_image_root(const std::string& root);

}  // namespace gpushm_testing
