/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym, dlvsym and syscall as other programs call them. A call that is not for this library goes to the next
 * definition by a jump, so that this sees its caller: RTLD_NEXT depends on the return address. */
#ifdef __CET__
#include <cet.h>
#endif
#ifndef _CET_ENDBR
#define _CET_ENDBR
#endif

/* enum ipc_entry */
#define DLSYM 0
#define DLVSYM 1
#define SYSCALL 2

#if defined(__x86_64__)

.macro begin name
  .globl \name
  .type \name, @function
  .p2align 4
\name:
  .cfi_startproc
  _CET_ENDBR
.endm

.macro end name
  .cfi_endproc
  .size \name, . - \name
.endm

/* Six arguments, and %al, which has the number of vector registers of a call with variable arguments. */
.macro save
  push %rdi
  .cfi_adjust_cfa_offset 8
  push %rsi
  .cfi_adjust_cfa_offset 8
  push %rdx
  .cfi_adjust_cfa_offset 8
  push %rcx
  .cfi_adjust_cfa_offset 8
  push %r8
  .cfi_adjust_cfa_offset 8
  push %r9
  .cfi_adjust_cfa_offset 8
  push %rax
  .cfi_adjust_cfa_offset 8
.endm

.macro restore
  pop %rax
  .cfi_adjust_cfa_offset -8
  pop %r9
  .cfi_adjust_cfa_offset -8
  pop %r8
  .cfi_adjust_cfa_offset -8
  pop %rcx
  .cfi_adjust_cfa_offset -8
  pop %rdx
  .cfi_adjust_cfa_offset -8
  pop %rsi
  .cfi_adjust_cfa_offset -8
  pop %rdi
  .cfi_adjust_cfa_offset -8
.endm

.macro lookup name entry
begin \name
  save
  mov $\entry, %edi
  call ipc_route
  mov %rax, %r11
  restore
  jmp *%r11
end \name
.endm

  .text
  lookup dlsym DLSYM
  lookup dlvsym DLVSYM

#define SYS_pidfd_open 434
#define SYS_pidfd_getfd 438

begin syscall
  cmp $SYS_pidfd_open, %rdi
  je ipc_replaced_syscall
  cmp $SYS_pidfd_getfd, %rdi
  je ipc_replaced_syscall
  save
  mov $SYSCALL, %edi
  call ipc_next_of
  mov %rax, %r11
  restore
  jmp *%r11
end syscall

#elif defined(__aarch64__)

.macro begin name
  .globl \name
  .type \name, %function
  .p2align 4
\name:
  .cfi_startproc
  hint 34 /* bti c */
.endm

.macro end name
  .cfi_endproc
  .size \name, . - \name
.endm

.macro save
  stp x29, x30, [sp, -80]!
  .cfi_adjust_cfa_offset 80
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x4, x5, [sp, 48]
  stp x6, x7, [sp, 64]
.endm

.macro restore
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  ldp x4, x5, [sp, 48]
  ldp x6, x7, [sp, 64]
  ldp x29, x30, [sp], 80
  .cfi_adjust_cfa_offset -80
  .cfi_restore x29
  .cfi_restore x30
.endm

.macro lookup name entry
begin \name
  save
  mov w0, \entry
  bl ipc_route
  mov x16, x0
  restore
  br x16
end \name
.endm

  .text
  lookup dlsym DLSYM
  lookup dlvsym DLVSYM

#define SYS_pidfd_open 434
#define SYS_pidfd_getfd 438

begin syscall
  cmp x0, SYS_pidfd_open
  b.eq ipc_replaced_syscall
  cmp x0, SYS_pidfd_getfd
  b.eq ipc_replaced_syscall
  save
  mov w0, SYSCALL
  bl ipc_next_of
  mov x16, x0
  restore
  br x16
end syscall

#else
#error "no entry for this architecture"
#endif

  .section .note.GNU-stack, "", %progbits
