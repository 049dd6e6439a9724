// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__SANITIZE_THREAD__)
#define GPUSHM_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GPUSHM_UNDER_THREAD_SANITIZER 1
#endif
#endif

#ifdef GPUSHM_UNDER_THREAD_SANITIZER
// Of the run-time library, which has no header for them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace gpushm::base {

/// Around calls that use descriptors in a thread with a table of its own (CLOSE_RANGE_UNSHARE).
/// ThreadSanitizer takes a descriptor's number for one thing of the whole process, and would report
/// what is done to two files of one number; meanwhile it does not look at this thread's reads and
/// writes. Nothing in other builds. Of the thread that makes it.
class own_table_scope {
 public:
#ifdef GPUSHM_UNDER_THREAD_SANITIZER
  own_table_scope() noexcept {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~own_table_scope() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  // NOLINTBEGIN(modernize-use-equals-default): then a variable of it would not be used
  own_table_scope() noexcept {}
  ~own_table_scope() {}
  // NOLINTEND(modernize-use-equals-default)
#endif
  own_table_scope(const own_table_scope&) = delete;
  own_table_scope& operator=(const own_table_scope&) = delete;
};

}  // namespace gpushm::base
