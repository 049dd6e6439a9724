// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "spec/document.hpp"
#include "spec/registry.hpp"

namespace gpushm::cdi {

/// An OCI runtime spec (config.json); keys keep their order, unknown ones stay as they are.
using oci_config = nlohmann::ordered_json;

/// What was done to a config, for a log.
struct applied_edit {
  std::string device;  ///< qualified name; the document's kind for edits of the document
  std::string text;    ///< "device /dev/nvidia0 (c 195:0 rwm)"
};

/// Applies edits as the CDI specification defines. Throws `error` (invalid_argument for a config
/// that is not one, system_error for a device node that is not there); `config` is then
/// unspecified.
void apply(const edits& changes,
           oci_config& config,
           const std::string& device,
           std::vector<applied_edit>& done);

/// Gives a container the devices of these qualified names: the edits of each document once, before
/// those of its devices. Throws `error` naming all that cannot be found; then, and for any other
/// failure, `config` is unchanged.
std::vector<applied_edit> inject(const registry& from,
                                 const std::vector<std::string>& names,
                                 oci_config& config);

}  // namespace gpushm::cdi
