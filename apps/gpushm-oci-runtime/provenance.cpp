// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/provenance.hpp"

namespace gpushm::oci_runtime {

provenance set_by(source source, const settings& chosen) {
  switch (source) {
    case source::annotation:
      // podman copies the annotations of the image, CRI-O those of the pod. A listed prefix is the
      // operator's statement that the engine of this machine copies neither.
      return chosen.annotation_prefixes.empty() ? provenance::image : provenance::engine_user;
    case source::mount:
      // A volume of an image has a directory of the engine as its source, never /dev/null.
      return provenance::engine_user;
    case source::variable:
      break;
  }
  return provenance::image;
}

permission permitted(source source, const settings& chosen, bool privileged) {
  permission out;
  out.any_kind = set_by(source, chosen) == provenance::engine_user;
  switch (source) {
    case source::annotation:
      out.accepted = out.any_kind;
      out.why_not = "annotation_prefixes is empty";
      break;
    case source::mount:
      out.accepted = chosen.accept_mounts;
      out.why_not = "accept_mounts is off";
      break;
    case source::variable:
      out.accepted = chosen.accept_variable_unprivileged || privileged;
      out.why_not = "the container is not privileged, and accept_variable_unprivileged is off";
      break;
  }
  if (out.accepted) {
    out.why_not.clear();
  }
  return out;
}

}  // namespace gpushm::oci_runtime
