#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the files that clang-tidy must check, as "FILE\\0COMMAND\\0": sources of src/ and apps/ (or
of the folder that TIDY_ROOT in the environment names), or files that include several of them (unity_groups.py), because clang-tidy
spends most of its time on included headers.

  tidy_files.py BUILD_DIR [BASE]
  tidy_files.py --sources [BASE]      prints paths of sources, one per line: those that `make aarch64` compiles separately

Without BASE, prints all of them. With BASE, a commit: those that changed since then; a tenth of the rest, selected by the
number of commits, so that ten commits check everything; and files that include a changed one, up to MAX_FILES in total: all
files may include one header, and a file, or a group of eight, takes about 15 s.
"""
import json
import os
import re
import subprocess
import sys
import zlib

ROOTS = tuple(name + "/" for name in os.environ.get("TIDY_ROOT", "src apps").split())
PARTS = 10
MAX_FILES = 25


def git(*words):
    return subprocess.run(("git",) + words, check=True, capture_output=True, text=True).stdout.splitlines()


def with_includers(changed, files):
    """`changed` and every file that includes one of them, directly or indirectly. An include names the end of a path."""
    included_by = {}
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as file:
            for found in re.findall(r'^\s*#\s*include\s*["<]([^">]+)', file.read(), re.M):
                included_by.setdefault(os.path.basename(found), []).append((os.path.normpath(found).lstrip("./"), name))
    result = set()
    pending = list(changed)
    while pending:
        name = pending.pop()
        if name in result:
            continue
        result.add(name)
        for end, includer in included_by.get(os.path.basename(name), ()):
            if ("/" + name).endswith("/" + end):
                pending.append(includer)
    return result


def chosen_of(members, base):
    """The keys of `members`, which are files, or groups of the files that it has for them, that must be checked."""
    if not base:
        return set(members)
    # A file that was only moved counts as unchanged.
    changed = set(git("diff", "--name-only", "-M95%", "--diff-filter=r", base[0]) +
                  git("ls-files", "--others", "--exclude-standard"))
    tracked = [name for name in git("ls-files", "*.cpp", "*.hpp", "*.h") if os.path.exists(name)]
    turn = int(git("rev-list", "--count", "HEAD")[0]) % PARTS
    touched = with_includers(changed, tracked)
    part = {name: zlib.crc32(name.encode()) % PARTS for name in members}
    chosen = {name for name in members if members[name] & changed or part[name] == turn}
    # Parts that are due next come first, so that every part is checked.
    others = sorted((name for name in members if members[name] & touched and name not in chosen),
                    key=lambda name: (part[name] - turn) % PARTS)
    return chosen | set(others[:max(0, MAX_FILES - len(chosen))])


def main():
    build, *base = sys.argv[1:]
    root = os.getcwd()
    sources = {}
    members = {}
    if build == "--sources":
        members = {name: {name} for name in git("ls-files", "src/*.cpp", "apps/*.cpp") if os.path.exists(name)}
        print("\n".join(sorted(chosen_of(members, base))))
        return
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            name = os.path.relpath(entry["file"], root)
            together = set()
            if name.startswith(os.path.join(build, "unity") + os.sep):
                with open(name, encoding="utf-8") as group:
                    together = {os.path.normpath(os.path.join(os.path.dirname(name), one)) for one in
                                re.findall(r'^#include "(.+)"', group.read(), re.M)}
            elif name.endswith(".cpp"):
                together = {name}
            if together and all(one.startswith(ROOTS) for one in together):
                sources[name] = entry
                members[name] = together
    chosen = chosen_of(members, base)
    if base:
        count = sum(len(members[name]) for name in chosen)
        print(f"tidy: {count} of {sum(map(len, members.values()))} files: changed since {base[0][:12]}, and one of {PARTS} parts "
              "(`make lint ALL=1` checks all)", file=sys.stderr)
    for name in sorted(chosen):
        sys.stdout.write(sources[name]["file"] + "\0" + sources[name]["command"] + "\0")


if __name__ == "__main__":
    main()
