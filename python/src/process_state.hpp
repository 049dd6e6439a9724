// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <mutex>

namespace gpushm_python {

/// The process's one `State`, which has a member `mutex`. Never destroyed: other libraries release
/// tensors after static objects are gone. A forked child gets it unlocked and consistent, so no
/// section that holds the mutex may fork or wait.
template <typename State>
State& process_state() {
  static State* const instance = [] {
    auto* const made = new State;  // NOLINT(cppcoreguidelines-owning-memory): see above
    static_cast<void>(::pthread_atfork([] { process_state<State>().mutex.lock(); },
                                       [] { process_state<State>().mutex.unlock(); },
                                       [] { process_state<State>().mutex.unlock(); }));
    return made;
  }();
  return *instance;
}

}  // namespace gpushm_python
