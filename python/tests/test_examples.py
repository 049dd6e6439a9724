# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python, also in real containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpushm

from support import REPOSITORY, Container, has_gpu, why_no_containers

EXAMPLES = REPOSITORY / "examples" / "python"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples on this machine")
GPU = pytest.mark.skipif(not has_gpu(), reason="no GPU")
DEVICES = ["host", pytest.param("0", marks=GPU)]


def run(broker, *argv: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, *argv],
        cwd=EXAMPLES,
        env=os.environ | {"GPUSHM_SOCKET": broker.socket} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def frameworks(device: str) -> list[str]:
    names = ["numpy"] if device == "host" else []
    return names + [name for name in ("torch", "jax") if _has(name)]


def _has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("name", ["engine", "jax_reads_pytorch", "loader", "rl_updates", "sidecar"])
def test_programs_print_their_usage_and_refuse_unknown_options(broker, name):
    """Options are no names of segments: `loader.py --help` once made a segment "--help"."""
    assert run(broker, f"{name}.py", "--help").startswith(f"usage: {name}.py")
    wrong = subprocess.run(
        [sys.executable, f"{name}.py", "--nosuch", "a", "b", "c", "d"],
        cwd=EXAMPLES,
        env=os.environ | {"GPUSHM_SOCKET": broker.socket},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert wrong.returncode == 2
    assert gpushm.connect(broker.socket).list() == []


def test_two_containers_prints_its_usage_and_refuses_unknown_options():
    command = ["sh", str(EXAMPLES / "two_containers.sh")]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "two_containers.sh [DEVICE [FRAMEWORK]]" in shown.stdout
    assert subprocess.run([*command, "--nosuch"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("device", DEVICES)
def test_the_side_car_keeps_the_model_over_deaths_of_its_engine(broker, device):
    words = set()
    for framework in frameworks(device):
        output = run(broker, "sidecar.py", f"w/{framework}", device, framework)
        lives = re.findall(
            r"engine (\d): ready: 13 tensors in [0-9.]+ ms, .*: (\d+)$", output, re.M
        )
        assert [life for life, _ in lives] == ["0", "1", "2", "3"], output
        words |= {word for _, word in lives}
    assert len(words) == 1  # the same in every framework and life


@pytest.mark.parametrize("device", DEVICES)
def test_engines_get_whole_updates_while_all_are_killed(broker, device):
    for framework in frameworks(device):
        if framework == "jax":
            continue
        options = ["--framework", framework, "--device", device, "--updates", "60", "--kills", "4"]
        output = run(broker, "rl_updates.py", *options)
        found = re.search(
            r"^(\d+) updates in [0-9.]+ s, each applied whole; killed: (.*)$", output, re.M
        )
        assert found is not None, output
        assert int(found[1]) >= 60
        assert sum(int(each) for each in re.findall(r" (\d+)(?:,|$)", found[2])) == 4, output


@pytest.mark.parametrize("device", DEVICES)
def test_jax_reads_what_pytorch_wrote(broker, device):
    for module in ("torch", "jax"):
        pytest.importorskip(module)
    output = run(broker, "jax_reads_pytorch.py", device)
    found = re.fullmatch(r"PyTorch: (\S+)\nJAX:     (\S+) on \w+\n", output)
    assert found is not None, output
    assert float(found.group(1)) == pytest.approx(float(found.group(2)), abs=2e-3)


@pytest.fixture
def contain(tmp_path, broker) -> Iterator[Callable[..., Container]]:
    """Starts a Python program in a container that shares the folder of the broker's socket only."""
    if why_no_containers() is not None:
        pytest.skip(str(why_no_containers()))
    started: list[Container] = []

    def start(*argv: str) -> Container:
        started.append(
            Container(
                tmp_path / f"container-{len(started)}",
                *["/usr/bin/env", f"GPUSHM_SOCKET={broker.socket}", "HOME=/tmp"],
                *[sys.executable, *argv],
                shared=(os.path.dirname(broker.socket), str(EXAMPLES)),
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        for stream in (each.process.stdin, each.process.stdout, each.process.stderr):
            stream.close()


@pytest.mark.parametrize("device", DEVICES)
def test_two_isolated_containers_run_one_copy_of_a_model(client, contain, device):
    for framework in frameworks(device):
        name = f"w/{framework}"
        engine = contain(str(EXAMPLES / "engine.py"), name, framework)
        loader = contain(str(EXAMPLES / "loader.py"), name, device)
        status, out, err = loader.end()
        assert status == 0, out + err
        assert re.match(rf"{name}: \d+ bytes on (host|GPU-\S+), persistent", out), out
        ready = engine.line()
        assert re.match(r"ready: 13 tensors", ready), ready + engine.end()[2]
        engine.say("3 1 4 1 5")
        first = engine.line()
        # It serves on without the loader and the broker's list; a second one computes the same.
        second = contain(str(EXAMPLES / "engine.py"), name, framework)
        second.say("3 1 4 1 5")
        status, out, err = second.end()
        assert status == 0, out + err
        assert out.splitlines()[-1] == first
        client.remove(name)
        engine.say("3 1 4 1 5")
        assert engine.line() == first


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_is_pickled_between_isolated_containers(client, contain, device):
    """A pickled array of one container, in another one: both processes are number 1."""
    writer = contain(
        "-c",
        "import gpushm, numpy, pickle, sys\n"
        "segment = gpushm.connect().create('m', 1 << 20, device=sys.argv[1])\n"
        "array = segment.view('int32', (4, 6), offset=256)\n"
        "array.copy_from(numpy.arange(24, dtype='int32'))\n"
        "segment.publish()\n"
        "import os\n"
        "print(os.getpid(), pickle.dumps(gpushm.SharedTensor(array)).hex(), flush=True)\n"
        "sys.stdin.readline()\n",
        device,
    )
    line = writer.line()
    assert line, writer.end()[2]
    pid, message = line.split()
    reader = contain(
        "-c",
        "import gpushm, numpy, os, pickle, sys\n"
        "array = pickle.loads(bytes.fromhex(sys.argv[1])).array\n"
        "print(os.getpid(), numpy.frombuffer(array.tobytes(), 'int32').sum(), flush=True)\n",
        message,
    )
    status, out, err = reader.end()
    assert (status, out, pid) == (0, "1 276\n", "1"), err


PODMAN = """
[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""


def test_two_containers_of_podman_run_one_copy_of_a_model(broker, monkeypatch):
    """The script that documents show, with an image that has this machine's programs."""
    for program in ("podman", "tar"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} in $PATH")
    if why_no_containers() is not None:
        pytest.skip(str(why_no_containers()))
    # Not below pytest's folder: podman wants short paths.
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    with tempfile.TemporaryDirectory(prefix="gpushm-", ignore_cleanup_errors=True) as folder:
        run_with_podman(broker, Path(folder))


def run_with_podman(broker, tmp_path: Path) -> None:
    (tmp_path / "containers.conf").write_text(PODMAN)
    (tmp_path / "root").mkdir()
    for folder in ("usr", "lib", "lib64", "bin", "tmp", "etc", "dev", "proc", "sys", "run"):
        (tmp_path / "root" / folder).mkdir()
    subprocess.run(["tar", "-C", tmp_path / "root", "-cf", tmp_path / "root.tar", "."], check=True)
    podman = [
        *["podman", "--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "runroot")],
        *["--tmpdir", str(tmp_path / "runroot"), "--storage-driver", "vfs"],
    ]
    wrapper = tmp_path / "podman"
    wrapper.write_text("#!/bin/sh\nexec " + " ".join(podman) + ' "$@"\n')
    wrapper.chmod(0o755)
    programs = ["/usr", "/lib", "/lib64", "/bin", sys.prefix, sysconfig.get_path("stdlib")]
    programs += [os.path.realpath(sys.base_prefix)]
    options = [f"--volume {each}:{each}:ro" for each in dict.fromkeys(programs)]
    variables = {
        "CONTAINERS_CONF": str(tmp_path / "containers.conf"),
        "GPUSHM_SOCKET": broker.socket,
        "IMAGE": "localhost/gpushm-python-test",
        "OPTIONS": " ".join(options),
        "PYTHON": sys.executable,
        "RUNTIME": str(wrapper),
    }
    imported = subprocess.run(
        [wrapper, "import", "--quiet", tmp_path / "root.tar", variables["IMAGE"]],
        env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert imported.returncode == 0, imported.stderr
    result = subprocess.run(
        [EXAMPLES / "two_containers.sh"],
        env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert re.match(r"example/transformer: \d+ bytes on host, persistent", lines[0]), result.stdout
    assert lines[1].startswith("ready: 13 tensors"), result.stdout
    assert re.fullmatch(r"\d+", lines[2]), result.stdout
