# SPDX-License-Identifier: Apache-2.0
"""What ``inspect.signature`` shows of the compiled functions (python/src/signature.cpp)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from typing import Any

__all__: list[str] = []

_Parameter = inspect.Parameter


def signature(overloads: Sequence[tuple[Any, ...]]) -> inspect.Signature:
    """Of nanobind's description of a function; of overloads the last one, which is the most general.

    Annotations are texts, as with ``from __future__ import annotations``.
    """
    (function,) = ast.parse(f"{overloads[-1][0]}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return inspect.Signature(
        _parameters(function.args),
        return_annotation=_annotation(function.returns, inspect.Signature.empty),
    )


def _parameters(arguments: ast.arguments) -> list[inspect.Parameter]:
    positional: list[tuple[ast.arg, Any]]
    positional = [(each, _Parameter.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    positional += [(each, _Parameter.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    required = [None] * (len(positional) - len(arguments.defaults))
    result = [
        _parameter(argument, kind, default)
        for (argument, kind), default in zip(
            positional, [*required, *arguments.defaults], strict=True
        )
    ]
    if arguments.vararg:
        result.append(_parameter(arguments.vararg, _Parameter.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        result.append(_parameter(argument, _Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg:
        result.append(_parameter(arguments.kwarg, _Parameter.VAR_KEYWORD))
    return result


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None = None) -> inspect.Parameter:
    return _Parameter(
        argument.arg,
        kind,
        default=_Parameter.empty if default is None else ast.literal_eval(default),
        annotation=_annotation(argument.annotation, _Parameter.empty),
    )


def _annotation(node: ast.expr | None, empty: Any) -> Any:
    return empty if node is None else ast.unparse(node)
