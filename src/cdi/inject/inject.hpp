// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cdi/document/document.hpp"
#include "cdi/inject/config.hpp"
#include "cdi/registry/registry.hpp"

namespace gpushm::cdi {

/// What was done to a config, for a log.
struct applied_edit {
  std::string device;  ///< qualified name; the document's kind for edits of the document
  std::string text;    ///< "device /dev/nvidia0 (c 195:0 rwm)"
};

/// Edits, and whose they are.
struct grant {
  std::string device;  ///< as `applied_edit::device`
  edits changes;
};

/// Applies edits as the CDI specification defines; asks the host for what a device node leaves out.
/// Throws `error` (invalid_argument for paths that could lead elsewhere, for a config that is not
/// one, and for a file of the host that is no device node; system_error for a device node that is
/// not there); `config` is then unspecified.
void apply(const edits& changes,
           oci_config& config,
           const std::string& device,
           std::vector<applied_edit>& done);

/// The same for all of them in their order. `config` is unchanged when it throws.
std::vector<applied_edit> apply_all(const std::vector<grant>& grants, oci_config& config);

/// What the devices of these qualified names change: the edits of each document once, before those
/// of the first of its devices. A name that comes twice counts once. Throws `error`
/// (device_not_found) naming all that cannot be found, and why.
[[nodiscard]] std::vector<grant> resolve(const registry& from,
                                         const std::vector<std::string>& names);

/// Gives a container the devices of these qualified names. Throws as `resolve` and `apply` do;
/// `config` is then unchanged.
std::vector<applied_edit> inject(const registry& from,
                                 const std::vector<std::string>& names,
                                 oci_config& config);

/// `changes` without what `config` has already, as after an earlier injection: applying twice would
/// run hooks twice. Throws `error` (invalid_argument) for a config that is not one.
[[nodiscard]] edits without_present(const edits& changes, const oci_config& config);

}  // namespace gpushm::cdi
