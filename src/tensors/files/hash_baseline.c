/* SPDX-License-Identifier: Apache-2.0 */
#define GPUSHM_HASH_KERNEL gpushm_hash_baseline
#include "tensors/files/hash_kernel.inc"
