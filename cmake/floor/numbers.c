// SPDX-License-Identifier: Apache-2.0
// Names that the headers of glibc 2.38 give strtol and its like, which also read binary numbers
// ("0b1" with base 0 or 2) since C23. These do not.

#define NUMBER(type, name)                                         \
  extern type old_##name(const char*, char**, int) __asm__(#name); \
  extern type __isoc23_##name(const char*, char**, int);           \
  type __isoc23_##name(const char* text, char** end, int base) {   \
    return old_##name(text, end, base);                            \
  }

NUMBER(long, strtol)
NUMBER(long long, strtoll)
NUMBER(unsigned long, strtoul)
NUMBER(unsigned long long, strtoull)
