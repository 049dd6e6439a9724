// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/files/sanitizers.hpp"

// Declared here because ThreadSanitizer's run-time library has no header for them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace gpushm::base {

/// Wraps calls that use descriptors in a thread with its own descriptor table
/// (CLOSE_RANGE_UNSHARE). ThreadSanitizer assumes that a descriptor's number means the same in the
/// whole process, and would report races between two files with the same number; this makes it
/// ignore the thread's reads and writes. Does nothing in other builds. Must be destroyed on the
/// thread that created it.
class own_table_scope {
 public:
  own_table_scope() noexcept {
    if constexpr (under_thread_sanitizer) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
  }
  ~own_table_scope() {
    if constexpr (under_thread_sanitizer) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  }
  own_table_scope(const own_table_scope&) = delete;
  own_table_scope& operator=(const own_table_scope&) = delete;
};

}  // namespace gpushm::base
