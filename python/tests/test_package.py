# SPDX-License-Identifier: Apache-2.0
"""The installed package: what it needs, and what it says about itself."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import gpushm
import gpushm._build

from support import Child

PACKAGE = Path(gpushm.__file__).parent


def needed(library: Path) -> set[str]:
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    return {
        line.split("[")[1].rstrip("]") for line in text.stdout.splitlines() if "(NEEDED)" in line
    }


def test_libraries_need_only_libraries_of_the_system():
    system = {
        "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1",
        "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
    }  # fmt: skip
    own = {"libgpushm.so.1", "libgpushm-broker.so.1"}
    # Shared with nanobind-backend, which catches the module's exceptions. The libraries have their own.
    assert needed(PACKAGE / "_core.abi3.so") <= system | own | {"libstdc++.so.6"}
    assert "libstdc++.so.6" in needed(PACKAGE / "_core.abi3.so")
    assert needed(PACKAGE / "libgpushm.so.1") <= system
    assert needed(PACKAGE / "libgpushm-broker.so.1") <= system | {"libgpushm.so.1"}


def test_the_package_uses_its_own_library():
    maps = Path("/proc/self/maps").read_text()
    for library in ("libgpushm.so.1", "libgpushm-broker.so.1"):
        assert str(PACKAGE / library) in maps


def test_an_import_needs_no_driver_and_no_framework():
    child = Child("""
        import sys
        import gpushm
        loaded = __import__('pathlib').Path('/proc/self/maps').read_text()
        assert 'libcuda' not in loaded and 'libnvidia' not in loaded
        for name in ('numpy', 'torch', 'jax', 'cupy', 'asyncio'):
            assert name not in sys.modules, name
        """)
    child.succeed()


def test_the_package_has_the_version_of_its_library():
    version = ".".join(map(str, gpushm.library_version()))
    assert gpushm.__version__ == version == importlib.metadata.version("gpushm")
    metadata = importlib.metadata.metadata("gpushm")
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata.get_all("Requires-Dist")[0] == "nanobind-backend>=1.0"


def test_free_threaded_python_is_refused(monkeypatch):
    gpushm._build.require_gil()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    with pytest.raises(ImportError, match="does not support free-threaded CPython"):
        gpushm._build.require_gil()


def test_everything_public_has_a_docstring():
    for name in gpushm.__all__:
        item = getattr(gpushm, name)
        assert item.__doc__, name
        if isinstance(item, type) and item.__module__ == "gpushm._core":
            for attribute in vars(item):
                if not attribute.startswith("_"):
                    assert getattr(item, attribute).__doc__, f"{name}.{attribute}"


def test_the_stub_is_that_of_the_module():
    pytest.importorskip("nanobind")
    python = Path(__file__).parents[1]
    made = subprocess.run(
        [sys.executable, python / "tools" / "stub.py"], check=True, capture_output=True, text=True
    )
    stub = (python / "gpushm" / "_core.pyi").read_text()
    assert made.stdout == stub, "run scripts/python.sh stubs"
