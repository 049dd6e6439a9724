// SPDX-License-Identifier: Apache-2.0
// Functions for system calls without any logic, which glibc has had since 2.30 (gettid), 2.34
// and 2.36.
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct mount_attr;
extern pid_t gettid(void);
extern int close_range(unsigned, unsigned, int);
extern int execveat(int, const char*, char* const[], char* const[], int);
extern int fsopen(const char*, unsigned);
extern int fsmount(int, unsigned, unsigned);
extern int fsconfig(int, unsigned, const char*, const void*, int);
extern int move_mount(int, const char*, int, const char*, unsigned);
extern int open_tree(int, const char*, unsigned);
extern int mount_setattr(int, const char*, unsigned, struct mount_attr*, size_t);

pid_t gettid(void) {
  return (pid_t)syscall(SYS_gettid);
}
int close_range(unsigned first, unsigned last, int flags) {
  return (int)syscall(SYS_close_range, first, last, flags);
}
int execveat(int directory,
             const char* path,
             char* const arguments[],
             char* const environment[],
             int flags) {
  return (int)syscall(SYS_execveat, directory, path, arguments, environment, flags);
}
int fsopen(const char* name, unsigned flags) {
  return (int)syscall(SYS_fsopen, name, flags);
}
int fsmount(int fd, unsigned flags, unsigned attributes) {
  return (int)syscall(SYS_fsmount, fd, flags, attributes);
}
int fsconfig(int fd, unsigned command, const char* key, const void* value, int aux) {
  return (int)syscall(SYS_fsconfig, fd, command, key, value, aux);
}
int move_mount(int from, const char* from_path, int to, const char* to_path, unsigned flags) {
  return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}
int open_tree(int directory, const char* path, unsigned flags) {
  return (int)syscall(SYS_open_tree, directory, path, flags);
}
int mount_setattr(
    int directory, const char* path, unsigned flags, struct mount_attr* attributes, size_t size) {
  return (int)syscall(SYS_mount_setattr, directory, path, flags, attributes, size);
}
