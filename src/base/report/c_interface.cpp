// SPDX-License-Identifier: Apache-2.0
#include "base/report/c_interface.hpp"

#include <new>

namespace gpushm::base {

gpushm_errc failed() noexcept {
  gpushm_error* failure = nullptr;
  try {
    // cppcheck-suppress rethrowNoCurrentException ; one is handled when this is called
    throw;
  } catch (const error& why) {
    failure = gpushm_error_dup(why.handle());
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): null means out of memory
  } catch (const std::exception& why) {
    failure = gpushm_error_create(GPUSHM_ERRC_SYSTEM_ERROR,
                                  {},
                                  {},
                                  c_text(why.what()),
                                  c_text("report this as a bug"),
                                  nullptr);
  }
  const gpushm_errc code =
      failure == nullptr ? GPUSHM_ERRC_OUT_OF_MEMORY : gpushm_error_code(failure);
  gpushm_private_failed(failure);
  return code;
}

}  // namespace gpushm::base
