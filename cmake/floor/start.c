// SPDX-License-Identifier: Apache-2.0
// The start files since glibc 2.34 let libc call a program's constructors. Older ones expect a
// function of the program for that; it is given to the old version of __libc_start_main, with which
// newer ones call it, too.

typedef void initialiser(int, char**, char**);
typedef int start(
    int (*)(int, char**, char**), int, char**, initialiser*, void (*)(void), void (*)(void), void*);

#ifdef __aarch64__
__asm__(".symver start_of_libc, __libc_start_main@GLIBC_2.17");
#else
__asm__(".symver start_of_libc, __libc_start_main@GLIBC_2.2.5");
#endif
extern start start_of_libc;
extern void _init(void);
extern initialiser* __init_array_start[] __attribute__((visibility("hidden")));
extern initialiser* __init_array_end[] __attribute__((visibility("hidden")));

// The dynamic linker has called the functions of .preinit_array.
static void run_constructors(int count, char** arguments, char** environment) {
  _init();
  for (initialiser** each = __init_array_start; each != __init_array_end; ++each) {
    (**each)(count, arguments, environment);
  }
}

int __libc_start_main(int (*main)(int, char**, char**),
                      int count,
                      char** arguments,
                      initialiser* unused,
                      void (*fini)(void),
                      void (*loader_fini)(void),
                      void* stack_end);
int __libc_start_main(int (*main)(int, char**, char**),
                      int count,
                      char** arguments,
                      initialiser* unused,
                      void (*fini)(void),
                      void (*loader_fini)(void),
                      void* stack_end) {
  (void)unused;
  return start_of_libc(main, count, arguments, run_constructors, fini, loader_fini, stack_end);
}
