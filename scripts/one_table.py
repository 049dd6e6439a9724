#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a program in which no thread can have a descriptor table of its own.

QEMU's emulation of programs knows event descriptors by their number only, in whichever table: it would convert messages
of a socket that has the same number in another table. With this, close_range(CLOSE_RANGE_UNSHARE) fails with ENOSYS, as
before Linux 5.9, and the broker's threads use the table of the process.

    one_table.py PROGRAM [ARGUMENTS...]
"""
import ctypes
import errno
import os
import platform
import struct
import sys

CLOSE_RANGE = 436  # the same on all architectures
CLOSE_RANGE_UNSHARE = 1 << 1
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
# Offsets in `struct seccomp_data`: the number, the architecture, the lower half of the third argument.
NUMBER, ARCHITECTURE, THIRD_ARGUMENT = 0, 4, 32

instructions = [
    (LOAD, 0, 0, ARCHITECTURE),
    (JUMP_IF_EQUAL, 0, 4, AUDIT_ARCH[platform.machine()]),
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 0, 2, CLOSE_RANGE),
    (LOAD, 0, 0, THIRD_ARGUMENT),
    (JUMP_IF_SET, 1, 0, CLOSE_RANGE_UNSHARE),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, FAIL | errno.ENOSYS),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
program = struct.pack("HP", len(instructions), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
for option, first, second in (
    (PR_SET_NO_NEW_PRIVS, 1, 0),
    (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(program)),
):
    if libc.prctl(option, ctypes.c_ulong(first), second, 0, 0) != 0:
        sys.exit(f"one_table.py: prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
