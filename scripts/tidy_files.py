#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what clang-tidy has to look at: "FILE\\0COMMAND\\0" of sources of src/ and apps/.

  tidy_files.py BUILD_DIR [BASE]

Without BASE all of them. With BASE, a commit: those that changed since then, a tenth of the rest, which the number of
commits chooses, so that ten commits look at everything, and of those that include what changed as many as fit into MOST:
one header can be included by all, and a file takes some 13 s.
"""
import json
import os
import re
import subprocess
import sys
import zlib

PARTS = 10
MOST = 50


def git(*words):
    return subprocess.run(("git",) + words, check=True, capture_output=True, text=True).stdout.splitlines()


def with_includers(changed, files):
    """`changed` and every file that includes one of them, directly or not. An include names a file by the end of its path."""
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


def main():
    build, *base = sys.argv[1:]
    root = os.getcwd()
    sources = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            name = os.path.relpath(entry["file"], root)
            if name.split(os.sep)[0] in ("src", "apps") and name.endswith(".cpp"):
                sources[name] = entry
    chosen = set(sources)
    if base:
        changed = set(git("diff", "--name-only", base[0]) + git("ls-files", "--others", "--exclude-standard"))
        # What decides how every file is looked at.
        if not changed & {".clang-tidy", "scripts/tidy.sh"}:
            tracked = [name for name in git("ls-files", "*.cpp", "*.hpp", "*.h") if os.path.exists(name)]
            turn = int(git("rev-list", "--count", "HEAD")[0]) % PARTS
            touched = with_includers(changed, tracked)
            part = {name: zlib.crc32(name.encode()) % PARTS for name in sources}
            chosen = {name for name in sources if name in changed or part[name] == turn}
            # The part that comes next first, so that every one has its turn.
            others = sorted((name for name in sources if name in touched and name not in chosen),
                            key=lambda name: (part[name] - turn) % PARTS)
            chosen |= set(others[:max(0, MOST - len(chosen))])
            print(f"tidy: {len(chosen)} of {len(sources)} files: changed since {base[0][:12]}, and part {turn + 1} of {PARTS} "
                  "(`make lint ALL=1` takes all)", file=sys.stderr)
    for name in sorted(chosen):
        sys.stdout.write(sources[name]["file"] + "\0" + sources[name]["command"] + "\0")


if __name__ == "__main__":
    main()
