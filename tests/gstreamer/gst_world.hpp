// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/broker_process/cli.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A broker, and the environment in which programs find it and the plug-in.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class gst_world {
 public:
  [[nodiscard]] std::string path(const std::string& name) const { return cli_.directory() / name; }
  [[nodiscard]] const cli& command() const noexcept { return cli_; }

  /// One registry for all tests of the program: GStreamer reads all plug-ins of the machine to
  /// write it.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> environment() const {
    static const gpushm_testing::temp_dir registry;
    return {{"GPUSHM_SOCKET", cli_.socket()},
            {"GST_PLUGIN_PATH", GPUSHM_GSTREAMER_DIR},
            {"GST_REGISTRY", registry / "registry"}};
  }
  [[nodiscard]] gpushm_testing::child serve() const { return cli_.serve(); }

 private:
  cli cli_;
};

}  // namespace gpushm_tests
