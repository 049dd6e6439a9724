// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/fork_guard.hpp"
#include "gpu/streams/registered_page.hpp"

namespace gpushm::streams {

/// Pages that are no longer in use. The end of a registration (cuMemHostUnregister) waits until all
/// streams of the process are idle: if one of them waits for a timeline that this thread is to
/// signal, it would wait without end. So registrations end when no stream waits. Waits of graphs,
/// which are not counted, must not be pending when the last timeline of a page is closed.
///
/// Thread-safety: safe.
class retired_pages {
 public:
  static retired_pages& of_process();

  /// Frees the page now, or later. `page` is in `memory`.
  void add(base::unique_mapping memory, std::unique_ptr<registered_page> page) noexcept;
  /// Frees all pages if no stream waits.
  void free_if_idle() noexcept;

 private:
  struct retired {
    base::unique_mapping memory;  // destroyed last
    std::unique_ptr<registered_page> page;
  };

  void forget_in_child() noexcept;

  base::fork_safe_mutex mutex_;
  std::uint64_t created_in_ = base::fork_generation();
  std::vector<retired> all_;
};

}  // namespace gpushm::streams
