# SPDX-License-Identifier: Apache-2.0
"""inspect.signature of the compiled functions and methods."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import pydoc
import types
from pathlib import Path

import pytest

import gpushm
import gpushm._core
import gpushm._signature

STUB = ast.parse((Path(gpushm.__file__).parent / "_core.pyi").read_text())


def is_property(node):
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return any(each == "property" or each.endswith(".setter") for each in decorators)


def functions_of(body, prefix=()):
    """Of the stub: places and definitions, the last one of overloads."""
    result = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            result |= functions_of(node.body, (*prefix, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
            result[(*prefix, node.name)] = node
    # A slot of the type, for the buffer protocol, not a method of nanobind.
    return {place: node for place, node in result.items() if place[-1] != "__buffer__"}


FUNCTIONS = functions_of(STUB.body)


def shape_of(signature):
    return [
        (each.name, each.kind.description, repr(each.default))
        for each in signature.parameters.values()
    ]


def found(place):
    item = gpushm._core
    for name in place:
        item = getattr(item, name)
    return item


def test_no_function_is_without_a_signature():
    assert len(FUNCTIONS) > 150
    places = {
        (name,) for name in gpushm.__all__ if getattr(gpushm, name).__module__ == "gpushm._core"
    }
    classes = {place for place in places if isinstance(found(place), type)}
    assert places - classes <= set(FUNCTIONS)
    for place in classes:
        for name, value in vars(found(place)).items():
            if callable(value) and not name.startswith("_"):
                assert (*place, name) in FUNCTIONS
            assert not hasattr(value, "__nb_signature__"), (*place, name)


@pytest.mark.parametrize("place", FUNCTIONS, ids=".".join)
def test_signatures_are_those_of_the_stub(place):
    node = FUNCTIONS[place]
    # Compiled by Python itself, so that this does not depend on what is tested.
    namespace = {}
    source = ast.unparse(ast.Module([node], [])).replace("async def", "def")
    for decorator in node.decorator_list:
        source = source.replace(f"@{ast.unparse(decorator)}\n", "")
    exec("from __future__ import annotations\n" + source, namespace)
    assert shape_of(inspect.signature(found(place))) == shape_of(
        inspect.signature(namespace[place[-1]])
    )


def test_constructors_of_classes_have_signatures():
    assert list(inspect.signature(gpushm.Broker).parameters)[:2] == ["socket", "domain"]
    assert list(inspect.signature(gpushm.StreamBatch).parameters) == []


def test_bound_methods_and_pydoc_show_signatures(client):
    assert list(inspect.signature(client.stat).parameters) == ["name", "generation"]
    assert inspect.signature(client.open).parameters["timeout"].default == 0.0
    assert isinstance(client.open, types.MethodType)
    assert client.open.__name__ == "open"
    assert client.open.__qualname__ == "Client.open"
    text = pydoc.plain(pydoc.render_doc(gpushm.Client.open))
    assert "access: 'str' = 'read'" in text
    assert "NoSuchSegmentError" in text
    assert "connect(socket" in pydoc.plain(pydoc.render_doc(gpushm))
    assert repr(gpushm.connect) == "<function gpushm._core.connect>"


def test_functions_behave_as_those_of_python(client):
    """What worked with nanobind's functions, and what works with Python's."""
    for each in (gpushm.connect, gpushm.Client.open, gpushm.Broker.__init__):
        assert pickle.loads(pickle.dumps(each)) is each
    assert gpushm.Client.list(client) == client.list() == client.list(prefix="")
    assert type(client).list.__get__(client)() == []
    assert not asyncio.iscoroutinefunction(gpushm.connect)
    with pytest.raises(TypeError, match="list"):
        gpushm.Client.list()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        client.open()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        client.open("w", unknown=1)
    with pytest.raises(TypeError):
        type(gpushm.connect)()
    with pytest.raises(AttributeError):
        gpushm.connect.__name__ = "other"


def test_signatures_have_all_kinds_of_parameters():
    overloads = [("def f(self)",), ("def f(a, /, b: int = -1, *c, d, e=(), **f) -> x[y]",)]
    signature = gpushm._signature.signature(overloads)
    assert str(signature) == "(a, /, b: 'int' = -1, *c, d, e=(), **f) -> 'x[y]'"
