// SPDX-License-Identifier: Apache-2.0
// gpushm._core: the C interface (include/gpushm) for Python.
#include <nanobind/nanobind.h>

#include <string>

#include "array.hpp"
#include "broker.hpp"
#include "channel.hpp"
#include "client.hpp"
#include "dtype.hpp"
#include "exchange.hpp"
#include "exchange_table.hpp"
#include "known_memory.hpp"
#include "log.hpp"
#include "poller.hpp"
#include "segment.hpp"
#include "signature.hpp"
#include "status.hpp"
#include "stop.hpp"
#include "stream_batch.hpp"
#include "subscription.hpp"
#include "tensors.hpp"
#include "ticket.hpp"
#include "timeline.hpp"
#include "torch_pool.hpp"
#include "window.hpp"

NB_MODULE(_core, module) {
  using namespace gpushm_python;
  // Objects of users in globals and in reference cycles live until the process ends.
  nb::set_leak_warnings(false);
  module.doc() = "The compiled part of gpushm. Use the package gpushm.";
  register_stop(module);
  register_poller(module);
  register_timeline(module);
  register_stream_batch(module);
  register_dtypes(module);
  register_array(module);
  register_segment(module);
  register_window(module);
  register_subscription(module);
  register_channel(module);
  register_client(module);
  register_broker(module);
  register_from_dlpack(module);
  register_exchange(module);
  register_tensors(module);
  register_known_memory(module);
  register_torch_pool(module);
  register_tickets(module);
  register_status(module);
  register_log(module);
  module.def(
      "library_version",
      [] {
        const std::uint32_t version = gpushm_version();
        return nb::make_tuple(version >> 16U, (version >> 8U) & 0xffU, version & 0xffU);
      },
      nb::sig("def library_version() -> tuple[int, int, int]"),
      "The version of the loaded libgpushm.");
  module.def(
      "error_name",
      [](int code) {
        const gpushm_string name = gpushm_errc_name(static_cast<gpushm_errc>(code));
        return nb::str(name.data, name.size);
      },
      nb::arg("code"),
      nb::sig("def error_name(code: int) -> str"),
      "The stable name of an error code; ``\"unknown\"`` for one that the library does not know.");
  add_signatures(module);  // last: of all that is registered
}
