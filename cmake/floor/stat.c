// SPDX-License-Identifier: Apache-2.0
// Exported by glibc since 2.33; before that, functions of each program that call these. They are
// chosen so that the system calls are the same as with a newer glibc: programs limit their system
// calls.
#include <fcntl.h>
#include <sys/stat.h>

#ifdef __aarch64__
enum { layout = 0 };
#else
enum { layout = 1 };
#endif
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout");

extern int __fxstat(int, int, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);
extern int __xmknodat(int, int, const char*, mode_t, dev_t*);

static int at(int directory, const char* path, void* out, int flags) {
  return __fxstatat(layout, directory, path, out, flags);
}

int stat(const char* path, struct stat* out) {
  return at(AT_FDCWD, path, out, 0);
}
int stat64(const char* path, struct stat64* out) {
  return at(AT_FDCWD, path, out, 0);
}
int fstat(int fd, struct stat* out) {
  return __fxstat(layout, fd, out);
}
int fstat64(int fd, struct stat64* out) {
  return __fxstat(layout, fd, (struct stat*)out);
}
int lstat(const char* path, struct stat* out) {
  return at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int lstat64(const char* path, struct stat64* out) {
  return at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstatat(int directory, const char* path, struct stat* out, int flags) {
  return at(directory, path, out, flags);
}
int fstatat64(int directory, const char* path, struct stat64* out, int flags) {
  return at(directory, path, out, flags);
}
int mknod(const char* path, mode_t mode, dev_t device) {
  return __xmknodat(0, AT_FDCWD, path, mode, &device);
}
int mknodat(int directory, const char* path, mode_t mode, dev_t device) {
  return __xmknodat(0, directory, path, mode, &device);
}
