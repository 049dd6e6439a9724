// SPDX-License-Identifier: Apache-2.0
// glibc 2.32 sets its own to true while a process has one thread; libstdc++ then counts references
// without atomic instructions. False is right for every process.

extern char __libc_single_threaded;
char __libc_single_threaded = 0;
