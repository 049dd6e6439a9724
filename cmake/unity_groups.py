#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups sources that can be compiled as one, and writes a file for each group that includes them.

  unity_groups.py ROOT OUTPUT_DIRECTORY [SEPARATE] <LIST

A line of LIST is the name of a target and paths of its sources below ROOT, separated by tabs. Prints one line per target:
its name, the files written and the ungrouped sources. A written file changes only when its group does. SEPARATE is a file
with paths of sources that are not grouped.

Two sources can be in a group unless one declares, with internal linkage (in an unnamed namespace, or static), a name that
the other uses, except as a member or qualified by another scope: the meaning of a name must not depend on the other
sources. Sources with macros, kernel headers, inline assembly or coroutines are not grouped, and sources with a
using-directive only with those that have the same.
"""
import os
import re
import sys

MAX_FILES = 8
MAX_LINES = 2000
NOT_DECLARED = set(
    "if for while switch return sizeof static_assert alignas decltype noexcept catch requires operator defined".split())


def without_text(source):
    source = re.sub(r'R"(\w*)\((.*?)\)\1"', '""', source, flags=re.S)
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r'"(\\.|[^"\\\n])*"', '""', source)
    source = re.sub(r"(?<![0-9a-fA-F])'(\\.|[^'\\\n])+'", "' '", source)
    return re.sub(r"/\*.*?\*/", "", source, flags=re.S)


def declared(text):
    """The name that a declaration at namespace scope introduces, and whether repeating it is harmless."""
    text = re.sub(r"\[\[.*?\]\]", "", text)
    text = re.sub(r"template\s*<.*?>\s*(?=[a-z\[])", "", text, flags=re.S).strip()
    found = re.match(r"(?:struct|class|union|enum(?: class| struct)?)\s+(\w+)", text)
    if found:
        return found.group(1), False
    if text.startswith(("using ", "namespace ")):
        found = re.match(r"(?:using|namespace)\s+(\w+)\s*=", text) or re.search(r"(\w+)\s*$", text)
        return (found.group(1), True) if found else (None, False)
    head = re.split(r"[={]", text)[0]
    found = re.search(r"([\w:~]+)\s*\(", head)
    if found and found.group(1) not in NOT_DECLARED:
        name = found.group(1)
        return (None, False) if "::" in name or name.isupper() or name.startswith(("TEST", "INSTANT")) else (name, False)
    found = re.search(r"(\w+)\s*(\[.*\])?\s*$", head)
    return (found.group(1), False) if found else (None, False)


def initialised(text):
    """Whether the brace after `text` begins an initialiser, which ends with a semicolon, and not a body."""
    text = re.sub(r"\boperator\s*[=!<>]+", "operator", text)
    while True:
        less = re.sub(r"\([^()]*\)", "", text)
        if less == text:
            return "=" in text
        text = less


class Source:
    def __init__(self, root, path, separate):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        self.lines = text.count("\n")
        self.alone = separate or bool(re.search(r"^\s*#\s*(define|undef)\b|^\s*#\s*include\s*<(linux|asm)/|\basm\b|\bco_(await|return|yield)\b", text, re.M))
        text = without_text(text)
        text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
        self.using = frozenset(re.findall(r"^using namespace ([\w:]+)", text, re.M))
        self.own = {}
        self.names = set(re.findall(r"(?<![.>\w])(?<!::)\w+", text))
        self.scan(text)

    def scan(self, text):
        scopes = []  # "unnamed", "named" or "body"
        buffer = ""
        parentheses = 0
        for character in text:
            body = "body" in scopes
            if character in "([":
                parentheses += 1
            elif character in ")]":
                parentheses -= 1
            if parentheses <= 0 and character == "{":
                if not body and re.search(r"(\bnamespace\b[\w:\s]*|extern\s*\"\")$", buffer.strip()):
                    scopes.append("unnamed" if buffer.strip().endswith("namespace") else "named")
                    buffer = ""
                    continue
                if not body:
                    self.declare(buffer, scopes)
                scopes.append("body")
            elif parentheses <= 0 and character == "}":
                if scopes and scopes.pop() != "body":
                    buffer = ""
                elif "body" not in scopes and not initialised(buffer):
                    buffer = ""
                continue
            elif parentheses <= 0 and character == ";" and not body:
                self.declare(buffer, scopes)
                buffer = ""
                continue
            if "body" not in scopes:
                buffer += character

    def declare(self, text, scopes):
        if "unnamed" in scopes or re.match(r"\s*(static|constexpr|const|using|namespace)\b", text):
            name, harmless = declared(text)
            if name:
                self.own[name] = " ".join(text.split()) if harmless else ""

    def fits(self, other):
        if self.alone or other.alone or self.using != other.using:
            return False
        for one, two in ((self, other), (other, self)):
            for name in one.own.keys() & two.names:
                if not one.own[name] or one.own[name] != two.own.get(name):
                    return False
        return True


def has_room(group, source, times):
    return len(group) < MAX_FILES * times and sum(each.lines for each in group) + source.lines <= MAX_LINES * times


def grouped(sources):
    groups = []
    for source in sources:
        for group in groups:
            if has_room(group, source, 1) and all(source.fits(each) for each in group):
                group.append(source)
                break
        else:
            groups.append([source])
    # A source by itself costs more than a larger group.
    for single in [group for group in groups if len(group) == 1]:
        for group in groups:
            if group is not single and has_room(group, single[0], 2) and all(single[0].fits(each) for each in group):
                group.append(single.pop())
                break
    return [group for group in groups if group]


def main():
    root, output = sys.argv[1:3]
    separate = set()
    for name in sys.argv[3:]:
        with open(name, encoding="utf-8") as file:
            separate.update(file.read().split())
    os.makedirs(output, exist_ok=True)
    for line in sys.stdin:
        target, *paths = line.rstrip("\n").split("\t")
        written = []
        for number, group in enumerate(grouped([Source(root, path, path in separate) for path in paths])):
            if len(group) == 1:
                written.append(group[0].path)
                continue
            file_name = os.path.join(output, f"{target}_{number}.cpp")
            # Relative paths: the text is the same in every clone, and no include root exposes all folders.
            up = os.path.relpath(root, output)
            text = "".join(f'#include "{up}/{each.path}"\n' for each in group)
            if not os.path.exists(file_name) or open(file_name, encoding="utf-8").read() != text:
                with open(file_name, "w", encoding="utf-8") as file:
                    file.write(text)
            written.append(file_name)
        print("\t".join([target] + written))


if __name__ == "__main__":
    main()
