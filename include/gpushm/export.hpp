// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks what libgpushm.so exports. The linker version script is what enforces it.
#define GPUSHM_API __attribute__((visibility("default")))
