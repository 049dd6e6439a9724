/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64 for several instruction sets (hash.cpp selects one). In C, because an inline function of
 * a C++ header that is compiled for one of them could be linked into code that runs on every CPU.
 */
#ifndef GPUSHM_WEIGHTS_HASH_KERNELS_H
#define GPUSHM_WEIGHTS_HASH_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

#define GPUSHM_HASH_STATE_BYTES 640
#define GPUSHM_HASH_STATE_ALIGNMENT 64

/* `state`: GPUSHM_HASH_STATE_BYTES that are aligned. None of them fails. */
typedef struct gpushm_hash_kernel {
  uint64_t (*hash)(const void* bytes, size_t count);
  void (*begin)(void* state);
  void (*add)(void* state, const void* bytes, size_t count);
  uint64_t (*value)(const void* state);
} gpushm_hash_kernel;

/* For every CPU of the architecture. */
extern const gpushm_hash_kernel gpushm_hash_baseline;
/* Of x86-64 only. */
extern const gpushm_hash_kernel gpushm_hash_avx2;
extern const gpushm_hash_kernel gpushm_hash_avx512;

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
