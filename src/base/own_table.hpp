// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/sanitizers.hpp"

// Of ThreadSanitizer's run-time library, which has no header for them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace gpushm::base {

/// Around calls that use descriptors in a thread with a table of its own (CLOSE_RANGE_UNSHARE).
/// ThreadSanitizer takes a descriptor's number for one thing of the whole process, and would report
/// what is done to two files of one number; meanwhile it does not look at this thread's reads and
/// writes. Nothing in other builds. Of the thread that makes it.
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
