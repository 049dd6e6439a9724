// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "apps/gpushm-oci-runtime/settings.hpp"

namespace gpushm::oci_runtime {

/// A part of a container's config.json that can request devices.
enum class source : std::uint8_t { annotation, mount, variable };

/// Who can have set a part of config.json. Nothing in the file proves who did: an image can also
/// set the annotation by which podman names itself.
enum class provenance : std::uint8_t {
  image,        ///< the image, on at least one engine
  engine_user,  ///< only the engine's user, or the operator says so in the settings
};

/// What the requests of a source can have.
struct permission {
  bool accepted = false;
  bool any_kind = false;  ///< otherwise only devices of `default_kind`
  std::string why_not;    ///< if they are not accepted: the reason, with the setting
};

/// Returns who can have set requests of `source`. The table in docs/oci-runtime.md has the same
/// content, engine by engine. Pure.
[[nodiscard]] provenance set_by(source source, const settings& chosen);

/// Returns what requests of `source` can have. What an image can set is accepted only by a setting,
/// and then only for devices of `default_kind`: an image cannot join a domain. `privileged`: the
/// engine's user has given the container CAP_SYS_ADMIN, and with it every device. Pure.
[[nodiscard]] permission permitted(source source, const settings& chosen, bool privileged);

}  // namespace gpushm::oci_runtime
