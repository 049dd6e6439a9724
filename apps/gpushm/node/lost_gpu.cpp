// SPDX-License-Identifier: Apache-2.0
// `gpushm lost-gpu`: an operator's report that the memory on a GPU is gone.
#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "base/segments/device_loss.hpp"
#include "domains/protocol/private_socket.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

struct lost_gpu_arguments {
  std::string uuid;
  std::string pci_address;
  std::uint32_t xid = 0;
  std::string run_dir = "/run/gpushm";
  bool json = false;
};

constexpr std::uint32_t max_xid = 65'535;

void add_lost_gpu_arguments(CLI::App& app, lost_gpu_arguments& arguments) {
  app.add_option("UUID", arguments.uuid, "UUID of the GPU or MIG instance")
      ->required()
      ->type_name("");
  app.add_option("--pci-address",
                 arguments.pci_address,
                 "The GPU's PCI address: its MIG instances are also lost")
      ->type_name("ADDRESS");
  app.add_option("--xid", arguments.xid, "The Xid after which it was lost: opens report it")
      ->check(CLI::Range(1U, max_xid))
      ->type_name("NUMBER");
  add_run_dir(app, arguments.run_dir);
  add_json(app, arguments.json);
}

constexpr std::chrono::milliseconds reply_timeout{15'000};

std::string pci_address_in(const std::string& text) {
  if (text.empty()) {
    return {};
  }
  const auto address = driver::normal_pci_address(text);
  if (!address) {
    throw error(errc::invalid_argument,
                "report a lost GPU",
                text,
                "it is not a PCI address",
                "write it as nvidia-smi does, such as 00000000:3B:00.0");
  }
  return *address;
}

int run_lost_gpu(const lost_gpu_arguments& arguments) {
  const domains::private_socket broker(arguments.run_dir);
  const base::device_loss loss = arguments.xid == 0
                                     ? base::device_loss{base::loss_cause::reported}
                                     : base::device_loss{base::loss_cause::xid, arguments.xid};
  broker.lose_device({arguments.uuid, pci_address_in(arguments.pci_address), loss}, reply_timeout);
  if (arguments.json) {
    print_json(json{{"lost", arguments.uuid}});
  } else {
    print_line("lost \"" + arguments.uuid + "\": no segment has memory on it now");
  }
  return exit_ok;
}

}  // namespace

void add_lost_gpu(command_list& commands) {
  add_command<lost_gpu_arguments>(
      commands,
      "lost-gpu",
      "Report that the memory on a GPU is gone: its segments in all domains of gpushm-brokerd end",
      add_lost_gpu_arguments,
      run_lost_gpu);
}

}  // namespace gpushm::cli
