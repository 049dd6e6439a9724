// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/spec_directories.hpp"

#include <CLI/CLI.hpp>

#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cli {

CLI::Option* add_spec_directories(CLI::App& app, std::vector<std::string>& directories) {
  return app
      .add_option("--spec-dir",
                  directories,
                  "Directory of CDI documents; may be repeated, later ones have precedence "
                  "(default: /etc/cdi, /var/run/cdi)")
      ->allow_extra_args(false)
      ->type_name("DIR");
}

std::vector<std::string> spec_directories(const std::vector<std::string>& given) {
  return given.empty() ? cdi::default_directories() : given;
}

}  // namespace gpushm::cli
