#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records how the CDI reference implementation and its schema judge the documents of tests/data/cdi/documents/cases.json.

    scripts/cdi_verdicts.py LOADER SCHEMA_DIRECTORY [CASES]

LOADER is a program that reads names of files, one a line, loads each with the CDI reference implementation's
cdi.ReadSpec, and prints "FILE<TAB>accept" or "FILE<TAB>reject<TAB>REASON". SCHEMA_DIRECTORY is the reference's schema/,
with schema.json and defs.json. Needs Python's jsonschema and PyYAML.

A case has a name, the name of its file, and its text (or bytes, as "hex"; %FILL% in a text is replaced by "fill", a text
and a repeat count). The script writes "reference" (accept, reject or crash), "reason" and "schema" (accept, reject, or none
if the text is not YAML). gpushm's expected result ("rules") is written by hand.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import referencing
import yaml


def content(case):
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    piece, count = case.get("fill", ("", 0))
    return case["text"].replace("%FILL%", piece * count).encode()


def ask_loader(loader, paths):
    """Restarts the loader after the file at which it crashed."""
    verdicts = {}
    left = list(paths)
    while left:
        answer = subprocess.run([loader], input="\n".join(left) + "\n", capture_output=True, text=True, check=False)
        lines = answer.stdout.splitlines()
        for line in lines:
            path, verdict, *reason = line.split("\t")
            verdicts[path] = (verdict, reason[0] if reason else "")
        if len(lines) < len(left):
            crash = answer.stderr.splitlines()[0] if answer.stderr else "no output"
            verdicts[left[len(lines)]] = ("crash", crash)
            lines.append("")
        left = left[len(lines):]
    return verdicts


def validator(directory):
    directory = pathlib.Path(directory)
    schema = json.loads((directory / "schema.json").read_text())
    definitions = json.loads((directory / "defs.json").read_text())
    resource = referencing.Resource.from_contents(definitions, referencing.jsonschema.DRAFT7)
    registry = referencing.Registry().with_resource("defs.json", resource)
    return jsonschema.Draft7Validator(schema, registry=registry)


def as_json(value, known):
    """The value as JSON types. Keeps objects shared that aliases share: some cases would otherwise exhaust memory."""
    if isinstance(value, dict):
        if id(value) not in known:
            known[id(value)] = {str(key): as_json(item, known) for key, item in value.items()}
        return known[id(value)]
    if isinstance(value, list):
        if id(value) not in known:
            known[id(value)] = [as_json(item, known) for item in value]
        return known[id(value)]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def ask_schema(schema, data):
    try:
        value = as_json(next(iter(yaml.safe_load_all(data)), None), {})
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return "none"
    return "accept" if schema.is_valid(value) else "reject"


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    index = pathlib.Path(sys.argv[3]) if len(sys.argv) == 4 else root / "tests/data/cdi/documents/cases.json"
    cases = json.loads(index.read_text())
    schema = validator(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, case in enumerate(cases):
            path = pathlib.Path(directory) / str(number)
            path.mkdir()
            path /= case["file"]
            path.write_bytes(content(case))
            paths.append(str(path))
        verdicts = ask_loader(sys.argv[1], paths)
        for case, path in zip(cases, paths):
            verdict, reason = verdicts[path]
            case["reference"] = verdict
            case["reason"] = reason.replace(path, case["file"])[:200]
            case["schema"] = ask_schema(schema, content(case))
    # One line per case, so that a change of a case changes one line.
    index.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
