// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

typedef struct mallinfo2 read_heap(void);

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// The older function counts in int: its values are those of a heap of up to 4 GiB.
static struct mallinfo2 read_in_int(void) {
  const struct mallinfo small = mallinfo();
  const struct mallinfo2 result = {.arena = (unsigned int)small.arena,
                                   .ordblks = (unsigned int)small.ordblks,
                                   .smblks = (unsigned int)small.smblks,
                                   .hblks = (unsigned int)small.hblks,
                                   .hblkhd = (unsigned int)small.hblkhd,
                                   .usmblks = (unsigned int)small.usmblks,
                                   .fsmblks = (unsigned int)small.fsmblks,
                                   .uordblks = (unsigned int)small.uordblks,
                                   .fordblks = (unsigned int)small.fordblks,
                                   .keepcost = (unsigned int)small.keepcost};
  return result;
}

// Since glibc 2.33.
struct mallinfo2 mallinfo2(void) {
  static _Atomic(read_heap*) chosen = NULL;
  read_heap* function = atomic_load_explicit(&chosen, memory_order_acquire);
  if (function == NULL) {
    void* const symbol = dlsym(RTLD_DEFAULT, "mallinfo2");
    if (symbol != NULL) {
      memcpy(&function, &symbol, sizeof function);
    } else {
      function = read_in_int;
    }
    atomic_store_explicit(&chosen, function, memory_order_release);
  }
  return function();
}
