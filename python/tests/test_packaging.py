# SPDX-License-Identifier: Apache-2.0
"""The wheel's metadata, and the source distribution."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from support import REPOSITORY

MAKE_SDIST = """
import sys
import scikit_build_core.build as backend
print(backend.build_sdist(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution: its file, and its folder when unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    made = subprocess.run(
        [sys.executable, "-c", MAKE_SDIST, str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    file = folder / made.stdout.split()[-1]
    with tarfile.open(file) as archive:
        archive.extractall(folder)
    return file, folder / file.name.removesuffix(".tar.gz")


def configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    cmake_dir = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return subprocess.run(
        [
            *("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DGPUSHM_ONLY_PYTHON=ON"),
            *(
                "-DGPUSHM_FLOOR=ON",
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DPython_EXECUTABLE={sys.executable}",
            ),
            *(f"-Dnanobind_DIR={cmake_dir}", "-DSKBUILD_SCRIPTS_DIR=scripts", *options),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C"},
    )


def test_the_metadata_of_the_package_is_complete():
    metadata = importlib.metadata.metadata("gpushm")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"]
    assert "cuda" in metadata["Keywords"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Operating System :: POSIX :: Linux" in metadata.get_all("Classifier")
    assert set(metadata.get_all("Provides-Extra")) >= {"numpy", "torch", "jax", "notebook"}
    for line in metadata.get_all("Requires-Dist"):
        assert line == "nanobind-backend>=1.0" or "extra ==" in line, line
    licence = [
        file
        for file in importlib.metadata.files("gpushm") or []
        if file.match("*.dist-info/licenses/LICENSE")
    ]
    assert len(licence) == 1
    assert "Apache License" in Path(str(licence[0].locate())).read_text()


def test_the_readme_is_complete_without_the_repository():
    text = importlib.metadata.metadata("gpushm").get_payload()
    assert text.startswith("# gpushm\n")
    # Of the repository these would be dead links on an index.
    links = re.findall(r"\]\(([^)]*)\)|<img[^>]*src=\"([^\"]*)|^\[[^]]+\]: *(\S+)", text, re.M)
    assert [link for each in links for link in each if link and "://" not in link] == []
    assert "make " not in text
    assert "pip install gpushm\n" in text


def test_a_source_distribution_is_complete(sdist, tmp_path):
    file, source = sdist
    subprocess.run([Path(sys.executable).parent / "twine", "check", "--strict", file], check=True)
    assert (source / "LICENSE").exists()
    assert not (source / "tests").exists()
    assert file.stat().st_size < 2 << 20
    configured = configure(source, tmp_path, "-DGPUSHM_UNITY=OFF")
    assert configured.returncode == 0, configured.stderr
    # Every source that the wheel is built of is there.
    planned = subprocess.run(
        [
            "cmake",
            "--build",
            tmp_path,
            "--target",
            "gpushm_python",
            "gpushm_python_files",
            "--",
            "-n",
        ],
        capture_output=True,
        text=True,
    )
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "stripped/gpushm" in planned.stdout


def test_a_source_distribution_names_missing_packages(sdist, tmp_path):
    _, source = sdist
    failed = configure(
        source,
        tmp_path,
        f"-DCMAKE_FIND_ROOT_PATH={tmp_path}",
        "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY",
    )
    assert failed.returncode != 0
    text = " ".join(failed.stderr.split())
    assert (
        "Missing: asio.hpp, flatbuffers/flatbuffers.h, nlohmann/json.hpp, xxhash.h, CLI/CLI.hpp, "
        "fmt/core.h, yaml.h" in text
    ), text
    assert (
        "apt install libasio-dev libflatbuffers-dev nlohmann-json3-dev libxxhash-dev libcli11-dev "
        "libfmt-dev libyaml-dev" in text
    ), text
    assert "dnf install asio-devel" in text
    assert "pip install --only-binary=:all: gpushm" in text
