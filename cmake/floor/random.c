// SPDX-License-Identifier: Apache-2.0
// Since glibc 2.36; used by std::random_device. Every kernel that the floor's distributions have
// has getrandom.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

extern uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
    if (errno != EINTR) {
      abort();
    }
  }
  return value;
}
