# SPDX-License-Identifier: Apache-2.0
"""Programs of bench/python, without figures of time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import REPOSITORY, command

PROGRAMS = REPOSITORY / "bench" / "python"
pytestmark = pytest.mark.skipif(not PROGRAMS.exists(), reason="no benchmarks on this machine")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAMS / "loads.py"), *arguments],
        env=os.environ | {"GPUSHM_COMMAND": str(command())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def loaders() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loaders", PROGRAMS / "loaders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_library_loads_or_is_reported_as_missing(tmp_path):
    figures = tmp_path / "figures.json"
    result = run(
        *("--device", "host", "--gib", "0.01", "--tensors", "5", "--files", "2"),
        *("--folder", str(tmp_path), "--json", str(figures), "--repetitions", "1", "--pause", "0"),
        *("--libraries", "gpushm,safetensors,instanttensor", "loads"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(figures.read_text())
    libraries = found["loads"]["libraries"]
    for name in ("gpushm", "safetensors"):
        assert len(libraries[name]["runs"]) == 1
        assert libraries[name]["first"]["best_GBps"] > 0
        assert libraries[name]["again"]["median_GBps"] > 0
    assert set(libraries["instanttensor"]) == {"missing"}
    assert "safetensors, first, best" in found["ratios of rates"]
    assert not any("instanttensor" in name for name in found["ratios of rates"])
    assert not list(tmp_path.glob("*.safetensors"))


def test_arguments_are_checked(tmp_path):
    for wrong in (
        ["--libraries", "other"],
        ["--files", "0"],
        ["--folder", f"{tmp_path}/no"],
        ["x"],
    ):
        assert run("--dry", *wrong).returncode == 2, wrong
    dry = json.loads(run("--dry", "--device", "host", "--libraries", "gpushm").stdout)
    assert "ready" in dry["libraries"]["gpushm"]


def test_wrong_data_is_an_error(tmp_path):
    module = loaders()
    path = str(Path(tmp_path) / "model.safetensors")
    model = {f"t{i}": np.full((64, 8), i, np.float16) for i in range(20)}
    save_file(model, path)
    places = module.places_of([path])
    loaded = load_file(path)
    module.compare(loaded, places, "cpu")
    for name in ("t0", "t7", "t19"):
        changed = loaded[name].copy()
        changed[-1, -1] += 1
        with pytest.raises(module.WrongDataError, match=f"^{name}: other contents"):
            module.compare(loaded | {name: changed}, places, "cpu")
    with pytest.raises(module.WrongDataError, match="tensors"):
        module.compare({**loaded, "more": loaded["t0"]}, places, "cpu")
    with pytest.raises(module.WrongDataError, match=r"^t1: "):
        module.compare(loaded | {"t1": loaded["t1"].astype(np.float32)}, places, "cpu")
    with pytest.raises(module.WrongDataError, match="is on cpu"):
        module.compare(loaded, places, "cuda")


def test_a_second_process_costs_no_memory(tmp_path):
    """transformers; the program fails above 1.05."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    figures = tmp_path / "figures.json"
    result = subprocess.run(
        [sys.executable, str(PROGRAMS / "second_process.py"),
         "--mib", "768", "--folder", str(tmp_path), "--json", str(figures)],
        env=os.environ | {"GPUSHM_COMMAND": str(command())},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(figures.read_text())
    assert [each["way"] for each in rows] == ["from_pretrained", "shared_weights"]
    assert rows[0]["size"] == rows[1]["size"] > 700 << 20
    assert 1 <= rows[1]["of_model_with_one"]["Pss"] < 1.05


def test_updates_are_applied_whole_in_each_mode(tmp_path):
    pytest.importorskip("torch")
    figures = tmp_path / "figures.json"
    result = subprocess.run(
        [sys.executable, str(PROGRAMS / "updates.py"),
         "--json", str(figures), "--gib", "0.01", "--tensors", "5", "--updates", "2"],
        env=os.environ | {"GPUSHM_COMMAND": str(command())},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    modes = [each["mode"] for each in json.loads(figures.read_text())]
    assert modes == ["reference", "copy", "swap", "remap", "torch"]
