# SPDX-License-Identifier: Apache-2.0
"""Real brokers, real child processes, and what a process holds."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Of each child process; a test that reaches it has failed.
TIME_LIMIT = 60.0


def _program(variable: str, path: str) -> Path:
    found = Path(os.environ.get(variable, REPOSITORY / "build" / "dev" / path))
    if not found.exists():
        pytest.exit(f"{found} does not exist (make build, or set {variable})", returncode=2)
    return found


def command() -> Path:
    """The command gpushm, which has the broker."""
    return _program("GPUSHM_COMMAND", "apps/gpushm/gpushm")


def run_with_fake_gpus() -> Path:
    return _program("GPUSHM_RUN_WITH_FAKE_GPUS", "tests/support/fake_driver/run-with-fake-gpus")


class Broker:
    """A process of `gpushm serve`."""

    def __init__(self, *options: str) -> None:
        # Not pytest's folder: the path of a socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="gpushm-test-")
        self.socket = f"{self._folder.name}/socket"
        self.start(*options)

    def start(self, *options: str) -> None:
        """Again, after `kill`."""
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                [
                    command(),
                    "serve",
                    "--socket",
                    self.socket,
                    "--ready-fd",
                    str(write_end),
                    *options,
                ],
                pass_fds=[write_end],
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            os.close(write_end)
            if os.read(read_end, 1) != b"\n":
                raise RuntimeError("the broker did not start")
        finally:
            os.close(read_end)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIME_LIMIT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(TIME_LIMIT)
        self._folder.cleanup()


# Python does not make it an exception if it is ignored, as in a job that a script has started with &.
_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


class Child:
    """A Python process that runs `code`. Lines of its output are events."""

    def __init__(self, code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _CTRL_C + textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def line(self) -> str:
        """The next one. A process that prints none in time is killed: then an empty one."""
        assert self.process.stdout is not None
        late = threading.Timer(TIME_LIMIT, self.process.kill)
        late.start()
        try:
            return self.process.stdout.readline().rstrip("\n")
        finally:
            late.cancel()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=TIME_LIMIT)

    def end(self) -> tuple[int, str, str]:
        """Exit status, the rest of the output, standard error."""
        try:
            out, err = self.process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            pytest.fail(f"the child process did not end: {out}\n{err}")
        return self.process.returncode, out, err

    def succeed(self) -> str:
        status, out, err = self.end()
        assert status == 0, f"status {status}\n{out}\n{err}"
        assert err == ""
        return out


def has_gpu() -> bool:
    """Whether the real driver has a GPU."""
    if "GPUSHM_FAKE_GPU_ROOT" in os.environ:
        return False
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def nvidia_devices() -> list[str]:
    """What a process needs to use the real GPUs of this machine."""
    if "GPUSHM_FAKE_GPU_ROOT" in os.environ:
        return []
    return sorted(str(each) for each in Path("/dev").glob("nvidia*") if each.is_char_device())


class Container:
    """A process in a container of runc: namespaces of its own for processes, IPC, mounts and network, no
    capabilities, a read-only root with the machine's programs, and only the folders that are named."""

    def __init__(self, folder: Path, *argv: str, shared: tuple[str, ...] = ()) -> None:
        (folder / "root").mkdir(parents=True)
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        config = json.loads((folder / "config.json").read_text())
        process = config["process"]
        process["terminal"] = False
        process["args"] = list(argv)
        process["env"] += [
            f"{key}={os.environ[key]}" for key in ("LD_LIBRARY_PATH",) if key in os.environ
        ]
        process["capabilities"] = {kind: [] for kind in ("bounding", "effective", "permitted")}
        process.pop("rlimits", None)  # a hard limit must not be raised
        config["root"] = {"path": "root", "readonly": True}
        programs = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"]
        programs += [sys.prefix, os.path.realpath(sys.base_prefix)]
        devices = nvidia_devices()
        mounts = [
            (each, ["rbind", "ro"]) for each in dict.fromkeys(programs) if Path(each).exists()
        ]
        mounts += [(each, ["rbind"]) for each in (*shared, *devices)]
        config["mounts"] += [
            {"destination": path, "source": os.path.realpath(path), "type": "none", "options": how}
            for path, how in mounts
        ]
        config["mounts"].append({"destination": "/tmp", "source": "tmpfs", "type": "tmpfs"})
        # Before what is mounted in it.
        config["mounts"].sort(key=lambda each: each["destination"].count("/"))
        config["linux"].setdefault("resources", {})["devices"] = [
            {"allow": False, "access": "rwm"},
            *[
                {
                    "allow": True, "type": "c", "access": "rw",
                    "major": os.major(os.stat(each).st_rdev), "minor": os.minor(os.stat(each).st_rdev),
                }
                for each in devices
            ],
        ]  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        self._name = f"gpushm-{os.getpid()}-{folder.name}"
        self.process = subprocess.Popen(
            ["runc", "run", "--bundle", str(folder), self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    line, say = Child.line, Child.say

    def end(self) -> tuple[int, str, str]:
        return Child.end(self)  # type: ignore[arg-type]

    def kill(self) -> None:
        subprocess.run(["runc", "delete", "--force", self._name], check=False, capture_output=True)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=TIME_LIMIT)


def why_no_containers() -> str | None:
    if shutil.which("runc") is None:
        return "no runc in $PATH"
    return "containers need root" if os.geteuid() != 0 else None


def wait_until(condition: Callable[[], bool], awaited: str, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not in time: {awaited}"
        time.sleep(0.002)


class Held:
    """What this process holds, to compare with what it holds later."""

    def __init__(self) -> None:
        self.descriptors = len(os.listdir("/proc/self/fd"))
        maps = Path("/proc/self/maps").read_text()
        self.mappings = sum("gpushm" in line and "memfd" in line for line in maps.splitlines())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.descriptors} descriptors, {self.mappings} mappings"


def increment(shared: Any) -> tuple[int, bool, str]:
    """For a process that multiprocessing has spawned: the sum, before the first element grows."""
    tensor = shared.tensor
    result = int(tensor.sum()), bool(tensor.flags.writeable), shared.array.dtype
    if tensor.flags.writeable:
        tensor.flat[0] += 1
    return result
