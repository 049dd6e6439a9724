// SPDX-License-Identifier: Apache-2.0
#include "ipc/numbers.h"

static uint64_t smaller(uint64_t left, uint64_t right) {
  return left < right ? left : right;
}

struct ipc_numbers ipc_choose_numbers(uint64_t soft, uint64_t hard) {
  const uint64_t most = UINT64_C(1) << 24U;
  const uint64_t end = smaller(hard, most);
  const uint64_t low = smaller(soft, end);
  const uint64_t first = end - low >= 1024 ? low : end / 2;
  const struct ipc_numbers numbers = {first, smaller(end - first, ipc_most_numbers)};
  return numbers;
}
