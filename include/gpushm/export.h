/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHM_EXPORT_H
#define GPUSHM_EXPORT_H

/* Marks exported symbols. The linker version script enforces the list. */
#define GPUSHM_API __attribute__((visibility("default")))

#endif
