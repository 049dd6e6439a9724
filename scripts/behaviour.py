#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists what the tests check, by the names of all tests in C++ and Python, as docs/behaviour.md. Reads sources only.

    scripts/behaviour.py            writes docs/behaviour.md
    scripts/behaviour.py --check    fails if docs/behaviour.md is not the current list
"""
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "behaviour.md"
CPP_TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\s*\)", re.M)
PYTHON_TEST = re.compile(r"^(?:class Test(\w+)|    (?:async )?def test_(\w+)|(?:async )?def test_(\w+))", re.M)
INTRODUCTION = """# What the tests check

The names of all tests in C++ and Python, as sentences. `scripts/behaviour.py` writes this page from the sources, and `make lint` fails if
it is not current. A test in C++ is named by its suite and its sentence: `--gtest_filter='suite.sentence_with_underscores'`; one in Python by
`pytest -k sentence_with_underscores`.
"""


def sentence(name):
    words = name.removeprefix("DISABLED_").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def tests_of(path):
    """Pairs of suite and sentence, in the order of the source."""
    source = path.read_text()
    if path.suffix == ".cpp":
        return [(found[1], sentence(found[2])) for found in CPP_TEST.finditer(source)]
    suite, tests = "", []
    for found in PYTHON_TEST.finditer(source):
        if found[1]:
            suite = found[1]
        else:
            suite = suite if found[2] else ""
            tests.append((suite, sentence(found[2] or found[3])))
    return tests


def subject(path):
    """The first paragraph of the comment that begins the file."""
    source = path.read_text()
    if path.suffix == ".py":
        found = re.search(r'^"""(.*?)(?:\n\n|""")', source, re.S | re.M)
        return " ".join(found[1].split()) if found else ""
    lines = []
    for line in source.splitlines():
        if line.startswith("// SPDX"):
            continue
        words = line.removeprefix("//").strip()
        if not line.startswith("//") or not words:
            break
        lines.append(words)
    return " ".join(lines)


def section(path, tests):
    lines = [f"### {path.relative_to(ROOT)}", ""]
    words = subject(path)
    if words:
        lines += [words, ""]
    suites = list(dict.fromkeys(suite for suite, _ in tests))
    for suite in suites:
        if suite:
            lines += [f"`{suite}`:", ""]
        lines += [f"- {words}" for owner, words in tests if owner == suite] + [""]
    return lines


def page():
    lines, folder, count = [], None, 0
    paths = sorted([*(ROOT / "tests").rglob("*.cpp"), *(ROOT / "python" / "tests").rglob("test_*.py")])
    for path in paths:
        tests = tests_of(path)
        if not tests:
            continue
        count += len(tests)
        if path.parent != folder:
            folder = path.parent
            lines += [f"## {folder.relative_to(ROOT)}", ""]
        lines += section(path, tests)
    return INTRODUCTION + f"\n{count:,} tests.\n\n" + "\n".join(lines).rstrip() + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        committed = PAGE.read_text() if PAGE.exists() else ""
        lines = committed.splitlines(), page().splitlines()
        difference = list(difflib.unified_diff(*lines, "docs/behaviour.md", "the tests", lineterm="", n=0))
        if difference:
            print("\n".join(difference[:20]), file=sys.stderr)
            sys.exit("docs/behaviour.md is not current: run scripts/behaviour.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(page())


main()
