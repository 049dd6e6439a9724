#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the lists of error codes in C++ and Python, from `gpushm_errc` in include/gpushm/gpushm.h, its numbers and comments. They
are the lines between "begin: scripts/error_codes.py" and "end: scripts/error_codes.py" in the files of BLOCKS.

    scripts/error_codes.py            writes them
    scripts/error_codes.py --check    fails if one of them is not current
"""
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "include/gpushm/gpushm.h"
ENUMERATOR = re.compile(
    r"(?:/\* (?P<above>[^*]+) \*/\s+)?GPUSHM_ERRC_(?P<name>\w+) = (?P<number>\d+),? *(?:/\* (?P<after>[^*]+) \*/)?"
)

# Where Python has a class for the same failure, it is a base.
PYTHON_BASES = {
    "ADDRESS_IN_USE": "OSError",
    "ALREADY_EXISTS": "FileExistsError",
    "BROKER_GONE": "ConnectionResetError",
    "BROKER_UNREACHABLE": "ConnectionRefusedError",
    "INVALID_ARGUMENT": "ValueError",
    "INVALID_FILE": "ValueError",
    "INVALID_TICKET": "ValueError",
    "NO_SUCH_SEGMENT": "FileNotFoundError",
    "OUT_OF_MEMORY": "MemoryError",
    "PEER_DIED": "ProcessLookupError",
    "PEER_UNREACHABLE": "ConnectionError",
    "PERMISSION_DENIED": "PermissionError",
    "SIZE_MISMATCH": "ValueError",
    "TIMED_OUT": "TimeoutError",
    "VALUE_OUT_OF_RANGE": "OverflowError",
}
# Python has a SystemError already. _errors.py defines this class itself: it has more to say.
SYSTEM_ERROR = "SystemCallError"


class Code(NamedTuple):
    name: str
    number: int
    meaning: str

    @property
    def python_class(self):
        if self.name == "SYSTEM_ERROR":
            return SYSTEM_ERROR
        return "".join(map(str.capitalize, self.name.removesuffix("_ERROR").split("_"))) + "Error"


def codes():
    """Of the header, in its order."""
    body = re.search(r"typedef enum gpushm_errc .*?\{\n(.*?)\n\} gpushm_errc;", HEADER.read_text(), re.S)[1]
    result = []
    for match in ENUMERATOR.finditer(body):
        comment = match["above"] or match["after"]
        if comment is None:
            sys.exit(f"{HEADER}: GPUSHM_ERRC_{match['name']} has no comment")
        result.append(Code(match["name"], int(match["number"]), " ".join(comment.split())))
    if len(result) != body.count(" GPUSHM_ERRC_"):
        sys.exit(f"{HEADER}: an enumerator of gpushm_errc is not NAME = NUMBER with a comment")
    return result


def cpp_enumerators(codes):
    return [f"  {code.name.lower()} = GPUSHM_ERRC_{code.name}," for code in codes]


def cpp_names(codes):
    """By number; a number without a code is unknown."""
    names = {code.number: code.name.lower() for code in codes}
    texts = [f'"{names.get(number, "unknown")}"' for number in range(max(names) + 1)]
    return textwrap.wrap(", ".join(texts) + ",", 100, initial_indent="    ", subsequent_indent="    ")


def python_exports(codes):
    return [f'    "{code.python_class}",' for code in codes]


def python_members(codes):
    return [f"    {code.name} = {code.number}" for code in codes]


def python_classes(codes):
    lines = []
    for code in codes:
        if code.name == "SYSTEM_ERROR":
            continue
        bases = ", ".join(filter(None, ("Error", PYTHON_BASES.get(code.name))))
        # A C type such as gpushm_stop is the class Stop.
        meaning = re.sub(r"gpushm_(\w+)", lambda match: match[1].capitalize(), code.meaning)
        lines += ["", "", f"class {code.python_class}({bases}):", f'    """{meaning[0].upper()}{meaning[1:]}."""']
    return [*lines[2:], "", ""]


# Of each file, what its blocks have, in their order.
BLOCKS = {
    "include/gpushm/error.hpp": [cpp_enumerators],
    "src/base/once/types.cpp": [cpp_names],
    "python/gpushm/_errors.py": [python_exports, python_members, python_classes],
}
BLOCK = re.compile(r"(begin: scripts/error_codes.py\n).*?([^\n]*end: scripts/error_codes.py\n)", re.S)


def with_blocks(path, writers, codes):
    """The text of the file, with current blocks."""
    text = path.read_text()
    count = len(BLOCK.findall(text))
    if count != len(writers):
        sys.exit(f"{path} has {count} blocks of scripts/error_codes.py, not {len(writers)}")
    rest = iter(writers)
    return BLOCK.sub(lambda match: match[1] + "\n".join([*next(rest)(codes), match[2]]), text)


def main():
    listed = codes()
    for file, writers in BLOCKS.items():
        path = ROOT / file
        current = with_blocks(path, writers, listed)
        if sys.argv[1:] != ["--check"]:
            path.write_text(current)
        elif path.read_text() != current:
            sys.exit(f"the error codes in {file} are not those of include/gpushm/gpushm.h: run scripts/error_codes.py")


if __name__ == "__main__":
    main()
