// SPDX-License-Identifier: Apache-2.0
// Names and descriptions of errors and signals, which do not depend on the locale; since
// glibc 2.32.
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#define NAME(error) [error] = #error
static const char* const names[] = {
    [0] = "0",
    NAME(EPERM),
    NAME(ENOENT),
    NAME(ESRCH),
    NAME(EINTR),
    NAME(EIO),
    NAME(ENXIO),
    NAME(E2BIG),
    NAME(ENOEXEC),
    NAME(EBADF),
    NAME(ECHILD),
    NAME(EAGAIN),
    NAME(ENOMEM),
    NAME(EACCES),
    NAME(EFAULT),
    NAME(ENOTBLK),
    NAME(EBUSY),
    NAME(EEXIST),
    NAME(EXDEV),
    NAME(ENODEV),
    NAME(ENOTDIR),
    NAME(EISDIR),
    NAME(EINVAL),
    NAME(ENFILE),
    NAME(EMFILE),
    NAME(ENOTTY),
    NAME(ETXTBSY),
    NAME(EFBIG),
    NAME(ENOSPC),
    NAME(ESPIPE),
    NAME(EROFS),
    NAME(EMLINK),
    NAME(EPIPE),
    NAME(EDOM),
    NAME(ERANGE),
    NAME(EDEADLK),
    NAME(ENAMETOOLONG),
    NAME(ENOLCK),
    NAME(ENOSYS),
    NAME(ENOTEMPTY),
    NAME(ELOOP),
    NAME(ENOMSG),
    NAME(EIDRM),
    NAME(ECHRNG),
    NAME(EL2NSYNC),
    NAME(EL3HLT),
    NAME(EL3RST),
    NAME(ELNRNG),
    NAME(EUNATCH),
    NAME(ENOCSI),
    NAME(EL2HLT),
    NAME(EBADE),
    NAME(EBADR),
    NAME(EXFULL),
    NAME(ENOANO),
    NAME(EBADRQC),
    NAME(EBADSLT),
    NAME(EBFONT),
    NAME(ENOSTR),
    NAME(ENODATA),
    NAME(ETIME),
    NAME(ENOSR),
    NAME(ENONET),
    NAME(ENOPKG),
    NAME(EREMOTE),
    NAME(ENOLINK),
    NAME(EADV),
    NAME(ESRMNT),
    NAME(ECOMM),
    NAME(EPROTO),
    NAME(EMULTIHOP),
    NAME(EDOTDOT),
    NAME(EBADMSG),
    NAME(EOVERFLOW),
    NAME(ENOTUNIQ),
    NAME(EBADFD),
    NAME(EREMCHG),
    NAME(ELIBACC),
    NAME(ELIBBAD),
    NAME(ELIBSCN),
    NAME(ELIBMAX),
    NAME(ELIBEXEC),
    NAME(EILSEQ),
    NAME(ERESTART),
    NAME(ESTRPIPE),
    NAME(EUSERS),
    NAME(ENOTSOCK),
    NAME(EDESTADDRREQ),
    NAME(EMSGSIZE),
    NAME(EPROTOTYPE),
    NAME(ENOPROTOOPT),
    NAME(EPROTONOSUPPORT),
    NAME(ESOCKTNOSUPPORT),
    NAME(EOPNOTSUPP),
    NAME(EPFNOSUPPORT),
    NAME(EAFNOSUPPORT),
    NAME(EADDRINUSE),
    NAME(EADDRNOTAVAIL),
    NAME(ENETDOWN),
    NAME(ENETUNREACH),
    NAME(ENETRESET),
    NAME(ECONNABORTED),
    NAME(ECONNRESET),
    NAME(ENOBUFS),
    NAME(EISCONN),
    NAME(ENOTCONN),
    NAME(ESHUTDOWN),
    NAME(ETOOMANYREFS),
    NAME(ETIMEDOUT),
    NAME(ECONNREFUSED),
    NAME(EHOSTDOWN),
    NAME(EHOSTUNREACH),
    NAME(EALREADY),
    NAME(EINPROGRESS),
    NAME(ESTALE),
    NAME(EUCLEAN),
    NAME(ENOTNAM),
    NAME(ENAVAIL),
    NAME(EISNAM),
    NAME(EREMOTEIO),
    NAME(EDQUOT),
    NAME(ENOMEDIUM),
    NAME(EMEDIUMTYPE),
    NAME(ECANCELED),
    NAME(ENOKEY),
    NAME(EKEYEXPIRED),
    NAME(EKEYREVOKED),
    NAME(EKEYREJECTED),
    NAME(EOWNERDEAD),
    NAME(ENOTRECOVERABLE),
    NAME(ERFKILL),
    NAME(EHWPOISON),
};

extern const char* strerrorname_np(int);
extern const char* strerrordesc_np(int);
extern const char* sigdescr_np(int);

const char* strerrorname_np(int error) {
  return error >= 0 && (size_t)error < sizeof names / sizeof names[0] ? names[error] : NULL;
}

// Static, and never freed.
static locale_t c_locale(void) {
  return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

const char* strerrordesc_np(int error) {
  return strerrorname_np(error) != NULL ? strerror_l(error, c_locale()) : NULL;
}

const char* sigdescr_np(int signal) {
  // strsignal returns memory of the thread for real-time signals only.
  if (signal <= 0 || signal >= 32) {
    return NULL;
  }
  const locale_t former = uselocale(c_locale());
  const char* const description = strsignal(signal);
  uselocale(former);
  return description;
}
