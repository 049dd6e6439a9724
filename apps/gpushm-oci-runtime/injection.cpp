// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/injection.hpp"

#include <fmt/core.h>

#include "apps/gpushm-oci-runtime/request.hpp"
#include "apps/gpushm-oci-runtime/selection.hpp"
#include "apps/gpushm-oci-runtime/text_diff.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {

namespace {

std::string list_text(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& each : list) {
    text += text.empty() ? "" : ", ";
    text += each;
  }
  return text;
}

}  // namespace

bool add_devices(cdi::oci_config& config, const settings& chosen, journal& log) {
  const request wanted = read_request(config, chosen);
  for (const std::string& each : wanted.ignored) {
    log.remark(severity::warning, "ignored " + each);
  }
  if (wanted.devices.empty()) {
    return false;
  }
  const cdi::registry registry(chosen.spec_dirs);
  const auto selection = select_devices(registry, wanted, chosen);
  cdi::oci_config edited = config;
  std::vector<cdi::applied_edit> done;
  std::vector<logged_edit> reasons;
  for (const selected& each : selection) {
    const std::size_t before = done.size();
    cdi::apply(cdi::without_present(each.given.changes, config), edited, each.given.device, done);
    reasons.resize(done.size(), {{}, {}, each.reason});
    if (done.size() == before && !each.given.changes.empty()) {
      log.remark(severity::info, each.given.device + " is already present");
    }
    if (!each.left_out.empty()) {
      log.remark(
          severity::info,
          fmt::format("{} without the files that NVIDIA_DRIVER_CAPABILITIES does not request: {}",
                      each.given.device,
                      list_text(each.left_out)));
    }
  }
  for (std::size_t i = 0; i < done.size(); ++i) {
    log.edit({done[i].device, done[i].text, reasons[i].reason});
  }
  config = std::move(edited);
  return !done.empty();
}

void edit_bundle(const command_line& called, const settings& chosen, journal& log) {
  const std::string file = called.config_file();
  const std::string text = cdi::read_config_text(file);
  cdi::oci_config config = cdi::parse_config(text, file);
  if (add_devices(config, chosen, log)) {
    cdi::replace_file(file, cdi::to_text(config, text));
  }
}

std::string difference(const command_line& called, const settings& chosen, journal& log) {
  const std::string file = called.config_file();
  cdi::oci_config config = cdi::parse_config(cdi::read_config_text(file), file);
  const std::string before = config.dump(2) + "\n";
  add_devices(config, chosen, log);
  return unified_diff(before, config.dump(2) + "\n", file, file + " (with devices)");
}

}  // namespace gpushm::oci_runtime
