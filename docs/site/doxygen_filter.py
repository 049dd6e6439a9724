#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a public header as Doxygen needs it: scripts/docs.sh runs it for each file.

The comments of the C headers are plain comments, which Doxygen ignores. The inline namespace of the C++
headers would be in each name.
"""

import re
import sys
from pathlib import Path

HEADING = re.compile(r"^/\* (-{4} .* -{4}|NOLINT\w*.*) \*/$", re.MULTILINE)
FIRST = re.compile(r"\A/\* SPDX-License-Identifier: Apache-2\.0\n \*\n")
BEFORE = re.compile(r"^(\s*)/\*(?!\*) ", re.MULTILINE)
AFTER = re.compile(r"(?<=\S)(\s+)/\*(?![*]) ")
# `typedef struct a {…} a;` and `typedef struct a a;` declare a twice.
RECORD = re.compile(r"^typedef (struct|enum) (\w+) (\{.*?^\}) \2;", re.MULTILINE | re.DOTALL)
HANDLE = re.compile(r"^typedef struct (\w+) \1;", re.MULTILINE)
# Of a header, not of the namespace that it declares.
SUBJECT = re.compile(r"^((?:///.*\n)+)namespace gpushm \{", re.MULTILINE)


def c_header(text: str, name: str) -> str:
    text = text.replace(" GPUSHM_INT ", " ")
    text = HEADING.sub("", text)
    text = FIRST.sub(f"/** @file {name}\n *\n", text)
    text = BEFORE.sub(r"\1/** ", text)
    text = AFTER.sub(r"\1/**< ", text)
    text = RECORD.sub(r"\1 \2 \3;", text)
    return HANDLE.sub(r"struct \1 {};", text)


def cpp_header(text: str, name: str) -> str:
    text = SUBJECT.sub(f"/// @file {name}\n///\n\\1\nnamespace gpushm {{", text)
    return text.replace("inline namespace v1 {", 'extern "C++" {')


def main() -> None:
    path = Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    sys.stdout.write(
        c_header(text, path.name) if path.suffix == ".h" else cpp_header(text, path.name)
    )


if __name__ == "__main__":
    main()
