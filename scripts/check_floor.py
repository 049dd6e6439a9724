#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that programs and libraries run with glibc 2.28, by the versions of the symbols that they need.

  scripts/check_floor.py [--allow PATTERN GLIBC]... PATH...

A path is an ELF file, a wheel, or a directory, whose ELF files are checked. Names each symbol that is too new, with its file. The limits are those
of manylinux_2_28. --allow: files of a directory whose path below it matches PATTERN (as in a shell) and that need the distribution's
libraries may need that glibc, and any libstdc++; a pattern without a file is an error.
"""
import fnmatch
import os
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cmake", "floor"))
import elf_versions  # noqa: E402

LIMITS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def too_new(version, limits):
    """Also for a version without a number, such as GLIBC_PRIVATE and GLIBC_ABI_DT_RELR (packed relocations)."""
    family = version.split("_")[0]
    if family not in LIMITS:
        return False  # of a library that is not of the system
    if version.startswith(("CXXABI_TM_", "CXXABI_FLOAT128")):
        return False  # since GCC 4.7 and 7
    parts = elf_versions.number(version)
    return parts is None or (family in limits and parts[1] > limits[family])


def check(path, name, limits):
    """The complaints about a file, or None if it is not an ELF file."""
    try:
        elf = elf_versions.read(path)
    except elf_versions.NotElf:
        return None
    complaints = []
    with_symbol = set()
    for symbol in elf.symbols:
        if not symbol.is_defined and symbol.version is not None and too_new(symbol.version, limits):
            complaints.append(f"{name}: {symbol.name} needs {symbol.version} of {symbol.library}")
            with_symbol.add(symbol.version)
    for version, library in elf.required:
        if too_new(version, limits) and version not in with_symbol:
            complaints.append(f"{name}: needs {version} of {library}")
    return complaints


def files_below(directory):
    for folder, folders, files in os.walk(directory):
        folders.sort()
        for file in sorted(files):
            path = os.path.join(folder, file)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path, os.path.relpath(path, directory)


def main(arguments):
    allowed = {}
    while arguments[:1] == ["--allow"] and len(arguments) >= 3:
        allowed[arguments[1]] = tuple(int(part) for part in arguments[2].split("."))
        arguments = arguments[3:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    complaints, unused = [], set(allowed)
    checked = with_newer = 0
    with tempfile.TemporaryDirectory() as scratch:
        files = []
        for number, path in enumerate(arguments):
            if path.endswith(".whl"):
                unpacked = os.path.join(scratch, str(number))
                with zipfile.ZipFile(path) as wheel:
                    wheel.extractall(unpacked)
                files += files_below(unpacked)
            elif os.path.isdir(path):
                files += files_below(path)
            else:
                files.append((path, path))
        for path, name in files:
            limits = LIMITS
            for pattern, glibc in allowed.items():
                if fnmatch.fnmatchcase(name, pattern):
                    limits = {"GLIBC": glibc}
                    unused.discard(pattern)
            found = check(path, name, limits)
            if found is not None:
                checked += limits is LIMITS
                with_newer += limits is not LIMITS
                complaints += found
    for line in complaints:
        print(f"check_floor: {line}", file=sys.stderr)
    for pattern in sorted(unused):
        print(f"check_floor: --allow {pattern}: no such file", file=sys.stderr)
    if checked + with_newer == 0:
        sys.exit("check_floor: no ELF file")
    if complaints or unused:
        sys.exit(1)
    others = f"; {with_newer} others need the distribution's libraries" if with_newer else ""
    print(f"check_floor: {checked} programs and libraries need at most glibc 2.28{others}")


if __name__ == "__main__":
    main(sys.argv[1:])
