// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/cdi/inject/config.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cdi {

/// A log entry for an edit of a config.
struct applied_edit {
  std::string device;  ///< qualified name; the document's kind for edits of the document
  std::string text;    ///< "device /dev/nvidia0 (c 195:0 rwm)"
};

/// Edits, and the device they belong to.
struct grant {
  std::string device;  ///< as `applied_edit::device`
  edits changes;
};

/// Applies edits as the CDI specification defines; reads missing fields of device nodes from the
/// host. Throws `error` (invalid_argument for unsafe paths, an invalid config, or a host file that
/// is not a device node; system_error for a missing device node); `config` is then unspecified.
void apply(const edits& changes,
           oci_config& config,
           const std::string& device,
           std::vector<applied_edit>& done);

/// The same for all of them in order. `config` is unchanged when it throws.
std::vector<applied_edit> apply_all(const std::vector<grant>& grants, oci_config& config);

/// The edits of the devices with these qualified names: each document's common edits once, before
/// those of its first device. Repeated names are ignored. Throws `error` (device_not_found) with
/// all names that were not found, and why.
[[nodiscard]] std::vector<grant> resolve(const registry& registry,
                                         const std::vector<std::string>& names);

/// Adds the devices with these qualified names to a container's config. Throws as `resolve` and
/// `apply` do; `config` is then unchanged.
std::vector<applied_edit> inject(const registry& registry,
                                 const std::vector<std::string>& names,
                                 oci_config& config);

/// `changes` without the edits that `config` already has, for instance from an earlier injection:
/// applying twice would run hooks twice. Throws `error` (invalid_argument) for an invalid config.
[[nodiscard]] edits without_present(const edits& changes, const oci_config& config);

}  // namespace gpushm::cdi
