# SPDX-License-Identifier: Apache-2.0
"""Reads the dynamic symbols of 64-bit little-endian ELF files, with their versions. Used by stubs.py and
scripts/check_floor.py; needs only the parts of the standard library that python3-minimal has."""
import re
import struct
from collections import namedtuple

FUNC, OBJECT, TLS = 2, 1, 6
UNDEFINED = 0

# `version` is None for a symbol without one. `is_default`: programs that are linked now get this version. `library` is the
# file name that an undefined symbol is expected in.
Symbol = namedtuple("Symbol", "name version is_default is_defined kind size library")
Elf = namedtuple("Elf", "machine soname needed symbols required")


class NotElf(Exception):
    pass


def number(version):
    """GLIBC_2.3.4 as ("GLIBC", (2, 3, 4)); None for a version without a number, such as GLIBC_PRIVATE."""
    found = re.fullmatch(r"([A-Z]+)_(\d+(?:\.\d+)*)", version)
    return (found.group(1), tuple(int(part) for part in found.group(2).split("."))) if found else None


def _text(table, offset):
    return table[offset:table.index(b"\0", offset)].decode()


def _chain(data, next_of):
    """The offsets of a linked list, each entry of which has at `next_of` the distance to the next one."""
    offset = 0
    while True:
        yield offset
        step = struct.unpack_from("<I", data, offset + next_of)[0]
        if step == 0:
            return
        offset += step


def read(path):
    """Raises NotElf for other files, and ValueError for an ELF file whose symbols cannot be read."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] != b"\x7fELF":
        raise NotElf(path)
    if data[4] != 2 or data[5] != 1:
        raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    section_offset = struct.unpack_from("<Q", data, 40)[0]
    section_size, section_count = struct.unpack_from("<HH", data, 58)
    sections = {}  # of dynamic linking, by type: (contents, contents of the section that it links to)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + index * section_size)
               for index in range(section_count)]
    for header in headers:
        if header[1] in (6, 11, 0x6FFFFFFF, 0x6FFFFFFE, 0x6FFFFFFD):
            strings = headers[header[6]]
            sections[header[1]] = (data[header[4]:header[4] + header[5]], data[strings[4]:strings[4] + strings[5]])
    is_dynamic = any(struct.unpack_from("<I", data, struct.unpack_from("<Q", data, 32)[0] + index * 56)[0] == 2
                     for index in range(struct.unpack_from("<H", data, 56)[0]))
    if is_dynamic and (6 not in sections or 11 not in sections):
        raise ValueError(f"{path}: no section headers")

    soname, needed = None, []
    dynamic, strings = sections.get(6, (b"", b""))
    for offset in range(0, len(dynamic), 16):
        tag, value = struct.unpack_from("<QQ", dynamic, offset)
        if tag == 1:
            needed.append(_text(strings, value))
        elif tag == 14:
            soname = _text(strings, value)

    versions = {}  # by index: (version, library)
    required = []  # also those that no symbol has, such as GLIBC_ABI_DT_RELR
    if 0x6FFFFFFE in sections:
        contents, strings = sections[0x6FFFFFFE]
        for entry in _chain(contents, 12):
            file_name, first = struct.unpack_from("<II", contents, entry + 4)
            library = _text(strings, file_name)
            chain = contents[entry + first:]
            for offset in _chain(chain, 12):
                index, name = struct.unpack_from("<HI", chain, offset + 6)
                versions[index & 0x7FFF] = (_text(strings, name), library)
                required.append((_text(strings, name), library))
    if 0x6FFFFFFD in sections:
        contents, strings = sections[0x6FFFFFFD]
        for entry in _chain(contents, 16):
            flags, index = struct.unpack_from("<HH", contents, entry + 2)
            if flags & 1 == 0:  # not the file's own name
                first = struct.unpack_from("<I", contents, entry + 12)[0]
                versions[index & 0x7FFF] = (_text(strings, struct.unpack_from("<I", contents, entry + first)[0]), None)

    symbols = []
    table, strings = sections.get(11, (b"", b""))
    indexes = sections.get(0x6FFFFFFF, (b"", b""))[0]
    for position in range(1, len(table) // 24):
        name, info, _, section, _, size = struct.unpack_from("<IBBHQQ", table, position * 24)
        index = struct.unpack_from("<H", indexes, position * 2)[0] if indexes else 1
        version, library = versions.get(index & 0x7FFF, (None, None))
        symbols.append(Symbol(_text(strings, name), version, index & 0x8000 == 0, section != UNDEFINED, info & 15, size, library))
    return Elf(machine, soname, needed, symbols, required)
