# SPDX-License-Identifier: Apache-2.0
"""Prints docs/python-api.md: names, signatures and documentation of the installed package and its stub."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path

import gpushm
import gpushm._core
import gpushm.reductions

HEADER = """\
# Python: the interface

Made from the package by `scripts/python.sh reference`. [python.md](python.md) shows how it is used.
"""


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    arguments = ast.unparse(node.args)
    arguments = arguments.removeprefix("self").removeprefix(", ")
    arguments = arguments.removeprefix("/, ").removeprefix("/")
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    if name == "__init__":
        return f"({arguments})"
    return f"{name}({arguments}){result}"


def text_of(documentation: str | None) -> str:
    """Of reStructuredText, as far as it is used: Markdown."""
    text = inspect.cleandoc(documentation or "")
    for role in ("class", "meth", "func", "attr", "data", "mod", "exc"):
        text = text.replace(f":{role}:`", "`")
    text = text.replace("``", "`")
    lines, in_code = [], False
    for line in text.splitlines():
        if in_code and line and not line.startswith("    "):
            in_code = False
        if line.endswith("::"):
            line, in_code = line[:-1], True
        lines.append(line)
    return "\n".join(lines)


def is_shown(name: str) -> bool:
    shown = ("__init__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__")
    return not name.startswith("_") or name in shown


def members(node: ast.ClassDef) -> list[str]:
    result = []
    for each in node.body:
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or not is_shown(each.name):
            continue
        decorators = [ast.unparse(one) for one in each.decorator_list]
        if any(one.endswith(".setter") for one in decorators):
            continue
        text = text_of(ast.get_docstring(each))
        if each.name == "__init__":
            if text:
                result.append(text)
            continue
        if "property" in decorators:
            kind = "" if each.returns is None else f": {ast.unparse(each.returns)}"
            head = f"`{each.name}{kind}`"
        else:
            head = f"`{signature(each, each.name)}`"
        body = textwrap.indent(text, "  ") if text else ""
        result.append(f"- {head}\n\n{body}".rstrip())
    return result


def definitions(path: str) -> dict[str, ast.AST]:
    tree = ast.parse(Path(path).read_text())
    return {
        each.name: each
        for each in tree.body
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def describe(name: str, node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        head = name + (
            signature(made[0], "__init__") if made and isinstance(made[0], ast.FunctionDef) else ""
        )
        values = [
            f"- `{each.target.id}: {ast.unparse(each.annotation)}`"
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and is_shown(each.target.id)
        ]
        parts = [f"### {name}", f"    {head}" if made else "", text_of(ast.get_docstring(node))]
        return "\n\n".join(filter(None, [*parts, "\n".join(values), *members(node)]))
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return f"### {name}\n\n    {signature(node, name)}\n\n{text_of(ast.get_docstring(node))}"


def main() -> None:
    package = Path(gpushm.__file__).parent
    known: dict[str, ast.AST] = definitions(str(package / "_core.pyi"))
    for path in sorted(package.glob("_*.py")):
        # What _core has is not a helper of the same name, such as `connect` of _aio.
        known = {
            name: node for name, node in definitions(str(path)).items() if name in gpushm.__all__
        } | known
    errors = [name for name in gpushm.__all__ if name.endswith("Error") or name == "ErrorCode"]
    parts = [HEADER, "## gpushm", text_of(gpushm.__doc__)]
    for name in gpushm.__all__:
        if name not in errors:
            parts.append(describe(name, known[name]))
    parts.append("## Exceptions")
    parts.append(describe("Error", known["Error"]))
    rows = []
    for name in errors:
        node = known[name]
        if name in ("Error", "ErrorCode") or not isinstance(node, ast.ClassDef):
            continue
        bases = ", ".join(f"`{ast.unparse(each)}`" for each in node.bases)
        rows.append(f"| `{name}` | {bases} | {text_of(ast.get_docstring(node)).splitlines()[0]} |")
    parts.append("\n".join(["| class | also a | |", "|---|---|---|", *rows]))
    parts += ["## gpushm.reductions", text_of(gpushm.reductions.__doc__)]
    source = definitions(gpushm.reductions.__file__)
    for name in gpushm.reductions.__all__:
        if name in source:
            parts.append(describe(name, source[name]))
    sys.stdout.write("\n\n".join(each.strip("\n") for each in parts) + "\n")


if __name__ == "__main__":
    main()
