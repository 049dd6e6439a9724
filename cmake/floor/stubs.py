#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes libraries to link with that have only the symbols of an old glibc and an old libstdc++ (GpushmFloor.cmake).

  stubs.py OUTPUT_DIRECTORY COMPILER GLIBC GLIBCXX CXXABI COMPATIBILITY

The libraries have the names, versions and sizes of this machine's, without code. A symbol's default version is the newest one that the
floor has; a symbol that is newer is not there, so a link that needs it fails. COMPATIBILITY is an archive with replacements of such
symbols, which is linked after libc. `moved.txt` lists the functions that glibc 2.28 has in another library.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import elf_versions  # noqa: E402

# Have old versions, but come from an archive: start.c, and glibc's own libc_nonshared.a. Only references that name the version
# are linked to libc's.
REPLACED = {"__libc_start_main", "at_quick_exit", "atexit", "pthread_atfork"}
AARCH64 = 183


def moved_functions():
    library_of = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "moved.txt"), encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                library_of.update(dict.fromkeys(words[1:], words[0]))
    return library_of


def allowed(version, floor):
    if version is None:
        return False
    parts = elf_versions.number(version)
    return parts is not None and parts[0] in floor and parts[1] <= floor[parts[0]]


def is_marker(symbol):
    """Whether it stands for a version instead of a function."""
    return symbol.name == symbol.version or symbol.name.endswith("_version_placeholder")


def symbols_of(path, floor):
    """{name: [Symbol, …]} of a library, the newest version first."""
    found = {}
    for symbol in elf_versions.read(path).symbols:
        if symbol.is_defined and not is_marker(symbol) and allowed(symbol.version, floor):
            found.setdefault(symbol.name, []).append(symbol)
    for versions in found.values():
        versions.sort(key=lambda symbol: elf_versions.number(symbol.version), reverse=True)
    return found


def assembly(symbols):
    lines = []
    count = 0
    for name in sorted(symbols):
        for position, symbol in enumerate(symbols[name]):
            count += 1
            alias = f"stub_{count}"
            joint = "@@" if position == 0 and name not in REPLACED else "@"
            is_data = symbol.kind in (elf_versions.OBJECT, elf_versions.TLS)
            section = {elf_versions.OBJECT: ".bss", elf_versions.TLS: '.tbss,"awT",%nobits'}.get(symbol.kind, ".text")
            kind = {elf_versions.OBJECT: "object", elf_versions.TLS: "tls_object"}.get(symbol.kind, "function")
            lines += [f".section {section}" if "," in section else section, ".balign 32" if is_data else "",
                      f".globl {alias}", f".type {alias}, %{kind}", f".size {alias}, {symbol.size if is_data else 1}",
                      f"{alias}:", f".skip {max(symbol.size, 1) if is_data else 1}", f".symver {alias}, {name}{joint}{symbol.version}, remove"]
    lines.append('.section .note.GNU-stack,"",%progbits')
    return "\n".join(line for line in lines if line) + "\n"


def write_library(directory, compiler, soname, symbols):
    versions = sorted({symbol.version for each in symbols.values() for symbol in each}, key=elf_versions.number)
    script = "".join(f"{version} {{ }};\n" for version in versions)
    stem = os.path.join(directory, soname)
    with open(stem + ".s", "w", encoding="utf-8") as file:
        file.write(assembly(symbols))
    with open(stem + ".map", "w", encoding="utf-8") as file:
        file.write(script)
    subprocess.run([compiler, "-shared", "-nostdlib", "-fuse-ld=bfd", "-Wl,-z,noexecstack", f"-Wl,-soname,{soname}",
                    f"-Wl,--version-script,{stem}.map", "-o", stem, stem + ".s"], check=True)


def path_of(compiler, name):
    path = subprocess.run([compiler, f"-print-file-name={name}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"stubs: {compiler} does not find {name}")
    return path


def main():
    directory, compiler, glibc, glibcxx, cxxabi, compatibility = sys.argv[1:]
    floor = {name: tuple(int(part) for part in text.split("."))
             for name, text in (("GLIBC", glibc), ("GLIBCXX", glibcxx), ("CXXABI", cxxabi))}
    os.makedirs(directory, exist_ok=True)
    library_of = moved_functions()
    libraries = {}
    libc = path_of(compiler, "libc.so.6")
    loader = "ld-linux-aarch64.so.1" if elf_versions.read(libc).machine == AARCH64 else "ld-linux-x86-64.so.2"
    # On a machine whose glibc is older than 2.34, the functions are still in their libraries.
    for soname in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", loader):
        for name, versions in symbols_of(path_of(compiler, soname), floor).items():
            target = library_of.get(name, soname) if soname == "libc.so.6" else soname
            libraries.setdefault(target, {}).setdefault(name, versions)
    for name in list(libraries["libpthread.so.0"]):
        if name in libraries["libc.so.6"]:
            del libraries["libpthread.so.0"][name]
    libraries["libstdc++.so.6"] = symbols_of(path_of(compiler, "libstdc++.so.6"), floor)
    for soname, symbols in libraries.items():
        write_library(directory, compiler, soname, symbols)

    def script(name, *parts):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(f"GROUP({' '.join(parts)})\n")

    def needed(soname):
        return f"AS_NEEDED({os.path.join(directory, soname)})"

    others = ["libpthread.so.0", "libdl.so.2", "librt.so.1", loader]
    others += sorted(soname for soname in set(library_of.values()) if soname in libraries and soname not in others)
    script("libc.so", os.path.join(directory, "libc.so.6"), path_of(compiler, "libc_nonshared.a"), compatibility,
           *(needed(soname) for soname in others))
    for name, soname in (("libm.so", "libm.so.6"), ("libpthread.so", "libpthread.so.0"), ("libdl.so", "libdl.so.2"), ("librt.so", "librt.so.1")):
        script(name, needed(soname))
    # What the old library lacks comes from the archive (a module whose exceptions pass through other libraries).
    script("libstdc++.so", os.path.join(directory, "libstdc++.so.6"), path_of(compiler, "libstdc++.a"))


if __name__ == "__main__":
    main()
