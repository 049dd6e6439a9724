/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHM_EXPORT_H
#define GPUSHM_EXPORT_H

/* Marks what the libraries export. The linker version script is what enforces it. */
#define GPUSHM_API __attribute__((visibility("default")))

#endif
