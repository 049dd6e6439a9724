#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layers: modules can include the headers of their dependencies and no others, and docs/architecture.md lists them.

  layers.py SOURCE_DIR BUILD_DIR

Reads BUILD_DIR/modules.txt (lines "NAME DIRECTORY DEPENDENCY...", written by gpushm_module) and compile_commands.json.
"""
import json
import os
import re
import subprocess
import sys
import tempfile


def closure(name, depends):
    """A name that is not a module stands for the rooms of that folder ("base")."""
    reached, pending = set(), [name]
    while pending:
        one = pending.pop()
        if one not in reached:
            reached.add(one)
            pending += depends[one] if one in depends else [room for room in depends if room.startswith(one + "_")]
    return reached


def main():
    source, build = map(os.path.abspath, sys.argv[1:])
    directories, depends = {}, {}
    with open(os.path.join(build, "modules.txt"), encoding="utf-8") as file:
        for line in file:
            name, directory, *uses = line.split()
            directories[name], depends[name] = directory, uses
    problems = []

    commands = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            found = re.search(r" -o \S*CMakeFiles/gpushm_(\w+)\.dir/", entry["command"])
            if found and found.group(1) in directories:
                commands.setdefault(found.group(1), entry["command"])

    checked = 0
    for name in sorted(directories):
        if name not in commands:
            problems.append(f"{name}: no compile command")
            continue
        allowed = {directories[one] for one in closure(name, depends) if one in directories}
        roots = set(re.findall(r"-I *(\S*roots/\S+)", commands[name]))
        roots = {os.path.normpath(os.path.join(build, one)) for one in roots}
        for other in sorted(set(directories.values())):
            header = next((one for one in sorted(os.listdir(os.path.join(source, "src", other))) if one.endswith(".hpp")), None)
            if header is None:
                continue
            visible = any(os.path.exists(os.path.join(root, other, header)) for root in roots)
            checked += 1
            if visible != (other in allowed):
                problems.append(f"{name}: {other}/{header} can{'' if visible else 'not'} be included, "
                                f"and DEPENDS lists {' '.join(depends[name]) or 'nothing'}")

    # Files that disagree about these definitions free Asio's memory in different ways.
    for name, directory in sorted(directories.items()):
        folder = os.path.join(source, "src", directory)
        uses = [one for one in os.listdir(folder) if one.endswith((".cpp", ".hpp")) and
                re.search(r'#include <asio', open(os.path.join(folder, one), encoding="utf-8").read())]
        if uses and "-DASIO_HAS_STD_ALIGNED_ALLOC=1" not in commands[name]:
            problems.append(f"{name}: {uses[0]} includes Asio without gpushm_use_asio({name})")

    # The compiler itself must refuse includes that the lists do not allow.
    with tempfile.TemporaryDirectory() as scratch:
        for text, allowed in (('#include "core/budget.hpp"', False), ('#include "base/text/text.hpp"', True)):
            planted = os.path.join(scratch, "planted.cpp")
            with open(planted, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            words = re.sub(r" -o \S+ -c \S+", "", commands["gpu_memory_sources"]).split()
            words = [one for one in words if not one.startswith("-M") and not one.endswith((".o", ".o.d")) and "ccache" not in one]
            while "-include-pch" in words:
                at = words.index("-include-pch")
                del words[at:at + 2]
            result = subprocess.run(words + ["-fsyntax-only", planted], cwd=build, capture_output=True, text=True, check=False)
            if (result.returncode == 0) != allowed:
                problems.append(f"compiling {text} as a part of gpu_memory_sources: exit status {result.returncode}\n{result.stderr}")

    with open(os.path.join(source, "docs/architecture.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| `src/([\w/]+)` \| `(\w+)` \| [^|]* \| ([^|]*) \|$", file.read(), re.M)
    documented = {name: (directory, re.findall(r"`(\w+)`", uses)) for directory, name, uses in rows}
    for name in sorted(set(directories) | set(documented)):
        real = (directories[name], depends[name]) if name in directories else None
        if documented.get(name) != real:
            problems.append(f"docs/architecture.md lists {documented.get(name)} for {name}, but the build has {real}")

    print("\n".join(problems))
    if problems or not checked:
        sys.exit(1)
    print(f"layers: {len(directories)} modules, {checked} pairs")


if __name__ == "__main__":
    main()
