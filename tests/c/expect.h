/* SPDX-License-Identifier: Apache-2.0 */
/* Expectations of the test programs in C; a program fails if `failures` is not 0 at its end. */
#ifndef GPUSHM_TESTS_C_EXPECT_H
#define GPUSHM_TESTS_C_EXPECT_H

#include <stdatomic.h>
#include <stdio.h>

#include "gpushm/gpushm.h"

static atomic_int failures = 0;

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

/* Checks the code, and that the error has the same code and a cause. */
static void expect_failure(const char* call, int line, gpushm_errc code, gpushm_errc expected) {
  const gpushm_error* error = gpushm_last_error();
  if (code != expected) {
    fprintf(stderr,
            "line %d: %s returned %d (%s), not %d\n",
            line,
            call,
            (int)code,
            code == GPUSHM_OK ? "" : gpushm_error_message(error).data,
            (int)expected);
    ++failures;
    return;
  }
  if (code == GPUSHM_OK) {
    return;
  }
  if (error == NULL || gpushm_error_code(error) != expected ||
      gpushm_error_cause(error).size == 0 ||
      gpushm_error_message(error).data[gpushm_error_message(error).size] != '\0') {
    fprintf(stderr, "line %d: %s set no matching error\n", line, call);
    ++failures;
  }
}
#define FAILS(call, wanted) expect_failure(#call, __LINE__, (call), (wanted))
#define WORKS(call) expect_failure(#call, __LINE__, (call), GPUSHM_OK)

#endif
