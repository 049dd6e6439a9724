// SPDX-License-Identifier: Apache-2.0
#include "poller.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>

namespace gpushm_python {

poller_object::poller_object() : process_(::getpid()) {
  failure::of(gpushm_poller_create(&handle_)).raise_if_any();
}

poller_object::~poller_object() {
  if (process_ != ::getpid()) {
    for (auto& each : stops_) {
      static_cast<void>(each.second.release());  // another thread may have had their locks
    }
    return;
  }
  gpushm_poller_free(handle_);
}

nb::list poller_object::wait() {
  std::array<std::uint64_t, 256> keys{};
  std::size_t count = 0;
  call_released([&] {
    return gpushm_poller_wait(handle_, GPUSHM_FOREVER, keys.data(), keys.size(), &count);
  });
  nb::list result;
  for (std::size_t i = 0; i != count; ++i) {
    stops_.erase(keys[i]);
    result.append(keys[i]);
  }
  return result;
}

void poller_object::wake() {
  failure::of(gpushm_poller_wake(handle_)).raise_if_any();
}

void poller_object::remove(std::uint64_t key) {
  if (process_ == ::getpid()) {
    call_released([&] { return gpushm_poller_remove(handle_, key); });
    stops_.erase(key);
  }
}

void register_poller(nb::module_& module) {
  nb::class_<poller_object>(module,
                            "Poller",
                            nb::is_final(),
                            "Watches what tasks of asyncio wait for (gpushm/_aio.py). One thread "
                            "calls :meth:`wait`.")
      .def(nb::init<>())
      .def("wait",
           &poller_object::wait,
           nb::sig("def wait(self) -> list[int]"),
           "Block until watches are due, and return their keys; none after :meth:`wake`.")
      .def("wake",
           &poller_object::wake,
           nb::sig("def wake(self) -> None"),
           "End the wait of another thread, or the next one.")
      .def("remove",
           &poller_object::remove,
           nb::arg("key"),
           nb::sig("def remove(self, key: int) -> None"),
           "Remove the watch of this key, if there is one.");
}

}  // namespace gpushm_python
