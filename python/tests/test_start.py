# SPDX-License-Identifier: Apache-2.0
"""The command in the wheel, and the brokers of connect(start=True) and Broker()."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

import gpushm
import gpushm._program

from support import REPOSITORY, Child, wait_until

PACKAGE = Path(gpushm.__file__).parent

CONNECT = """
    import gpushm, sys
    client = gpushm.connect(start=True)
    print(client.broker().pid, client.broker().socket, flush=True)
    sys.stdin.readline()
    """


def brokers_at(socket: str) -> list[int]:
    """Processes of `gpushm serve` with this socket in their arguments or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        place = os.fsencode(socket)
        if b"serve" in command and (place in command or b"GPUSHM_SOCKET=" + place in environment):
            found.append(int(process.name))
    return found


@pytest.fixture
def socket(monkeypatch):
    """Where connect(start=True) finds or starts a broker; ends it with the test."""
    # Not pytest's folder: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpushm-test-") as folder:
        path = f"{folder}/socket"
        monkeypatch.setenv("GPUSHM_SOCKET", path)
        yield path
        for pid in brokers_at(path):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not brokers_at(path), "the broker ends")


def test_the_command_is_installed():
    path = gpushm._program.program()
    assert Path(path).parent == Path(sys.prefix) / "bin"
    assert Path(path).read_bytes()[:4] == b"\x7fELF"
    said = [
        subprocess.run([*command, "version"], capture_output=True, text=True, check=True).stdout
        for command in ([path], [sys.executable, "-m", "gpushm"])
    ]
    assert said[0] == said[1]
    assert gpushm.__version__ in said[0]
    unknown = subprocess.run([sys.executable, "-m", "gpushm", "open"], capture_output=True)
    assert unknown.returncode == 2


def test_programs_run_with_the_library_for_cuda_ipc(socket):
    """`gpushm run` finds libgpushm-ipc.so, and that its libgpushm, in the installed wheel."""
    folder = Path(sys.prefix) / "lib" / "gpushm" / "ipc"
    maps = subprocess.run(
        [sys.executable, "-m", "gpushm", "run", "--", sys.executable, "-c",
         "print(open('/proc/self/maps').read())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout  # fmt: skip
    assert str(folder / "libgpushm-ipc.so") in maps
    own = PACKAGE / "libgpushm.so.1"
    assert (folder / "libgpushm.so.1").read_bytes() == own.read_bytes()
    # Both libraries in one process.
    both = subprocess.run(
        [sys.executable, "-m", "gpushm", "run", "--", sys.executable, "-c",
         "import gpushm; print(gpushm.connect(start=True).broker().socket)"],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert both.stdout.strip() == socket


def test_a_missing_command_is_reported(monkeypatch):
    monkeypatch.setattr(gpushm._program, "_candidates", lambda: iter([Path("/nowhere/gpushm")]))
    with pytest.raises(FileNotFoundError, match=r"is not installed.*\(install it again"):
        gpushm._program.program()


def test_processes_that_start_at_once_get_one_broker(socket, spawn):
    children = [spawn(CONNECT) for _ in range(12)]
    lines = {child.line() for child in children}
    assert len(lines) == 1, lines
    (line,) = lines
    pid, path = line.split()
    assert path == socket
    assert brokers_at(socket) == [int(pid)]
    for child in children:
        child.say("")
        child.succeed()


def test_the_broker_outlives_the_process_that_has_started_it(socket, spawn):
    """As when a notebook's kernel is restarted."""
    first = spawn("""
        import gpushm, sys
        client = gpushm.connect(start=True)
        segment = client.create('kept', 4096, device='host', lifetime='persistent')
        segment.write(b'kept')
        segment.publish()
        print(client.broker().pid, flush=True)
        sys.stdin.readline()
        """)
    pid = int(first.line())
    assert os.getsid(pid) == pid  # in no session of a terminal or a kernel
    assert os.readlink(f"/proc/{pid}/fd/1") == "/dev/null"
    first.kill()
    with gpushm.connect(start=True) as client:
        assert client.broker().pid == pid
        assert client.open("kept").read(0, 4) == b"kept"
        client.remove("kept")


def test_a_running_broker_is_used(broker, monkeypatch):
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    with gpushm.connect(start=True) as client:
        assert client.broker().pid == broker.process.pid
    with gpushm.connect(broker.socket, start=True, timeout=None, prefetch=["none"]) as client:
        assert client.broker().pid == broker.process.pid


def test_a_given_socket_is_used_before_the_environment(socket, monkeypatch):
    monkeypatch.setenv("GPUSHM_SOCKET", "/nowhere/socket")
    with gpushm.connect(Path(socket), start=True) as client:
        assert client.broker().socket == socket


def test_a_forked_child_finds_the_same_broker(socket, spawn):
    child = spawn("""
        import gpushm, os, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        with gpushm.connect(start=True) as client:
            pid = client.broker().pid
            if os.fork() == 0:
                assert gpushm.connect(start=True).broker().pid == pid
                os._exit(0)
            print(os.wait()[1], flush=True)
        """)
    assert child.succeed() == "0\n"


def test_a_broker_that_cannot_start_is_reported_with_the_cause(socket):
    with pytest.raises(gpushm.SystemCallError, match=r"start a broker: .*does not exist") as failed:
        gpushm.connect("/nowhere/at/all", start=True)
    assert failed.value.code == gpushm.ErrorCode.SYSTEM_ERROR
    assert "mkdir -p /nowhere/at" in failed.value.cause
    assert "gpushm serve" in failed.value.next_step


def test_a_stopped_broker_is_not_waited_for_longer_than_the_timeout(socket):
    with gpushm.connect(start=True) as client:
        pid = client.broker().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises((gpushm.TimedOutError, gpushm.BrokerUnreachableError)):
            gpushm.connect(start=True, timeout=1, request_limit=1)
    finally:
        os.kill(pid, signal.SIGCONT)


# ---- Broker() ----


def test_a_broker_without_a_path_has_a_private_directory(monkeypatch, tmp_path, spawn):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    if len(str(runtime)) > 80:
        pytest.fail(f"{runtime} is too long for this test")
    with gpushm.Broker() as first, gpushm.Broker() as second:
        assert first.socket != second.socket
        folder = Path(first.socket).parent
        assert folder.parent == runtime
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        child = spawn(
            "import gpushm, sys; print(gpushm.connect(sys.argv[1]).broker().domain)", first.socket
        )
        assert child.succeed() == "default\n"
    assert list(runtime.iterdir()) == []
    forking = spawn(
        """
        import gc, gpushm, os, sys
        broker = gpushm.Broker()
        if os.fork() == 0:
            del broker
            gc.collect()
            os._exit(0)
        assert os.wait()[1] == 0
        print(len(os.listdir(sys.argv[1])))
        del broker
        gc.collect()
        """,
        str(runtime),
    )
    assert forking.succeed() == "1\n"
    assert list(runtime.iterdir()) == []
    with pytest.raises(TypeError):
        gpushm.Broker(no_such_limit=1)
    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize("wrong", ["relative", "/nowhere", "open", "long"])
def test_unsuitable_runtime_directories_are_not_used(monkeypatch, tmp_path, wrong):
    if wrong == "open":
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        wrong = str(tmp_path / "open")
    elif wrong == "long":
        wrong = str(tmp_path / ("long" * 20))
        Path(wrong).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", wrong)
    with gpushm.Broker() as broker:
        assert not broker.socket.startswith(wrong)
        gpushm.connect(broker.socket).close()


# ---- uninstall and upgrade ----


def test_a_running_broker_survives_uninstall_and_upgrade(socket, tmp_path):
    wheels = list((REPOSITORY / "build" / "python" / "dist").glob("gpushm-*.whl"))
    if not wheels:
        pytest.skip("no wheel in build/python/dist (make wheel)")
    venv.create(tmp_path / "other", with_pip=False)
    programs = tmp_path / "other" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--quiet"]
    pip += ["--disable-pip-version-check"]

    def gpushm_says(*arguments: str) -> str:
        done = subprocess.run(
            [programs / "gpushm", *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout

    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheels[0]], check=True)
    gpushm_says("serve", "--detach", "--idle-exit", "60s")
    gpushm_says(
        *("create", "kept", "--device", "host", "--size", "4096", "--lifetime", "persistent")
    )
    (pid,) = brokers_at(socket)
    subprocess.run([*pip, "uninstall", "--yes", "gpushm"], check=True)
    assert not (programs / "gpushm").exists()
    with gpushm.connect() as client:  # the package of this environment
        assert client.broker().pid == pid
        assert client.open("kept").size == 4096
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheels[0]], check=True)
    assert "kept" in gpushm_says("ls")
    assert brokers_at(socket) == [pid]
    gpushm_says("rm", "kept")


def test_extras_import_nothing(spawn):
    child: Child = spawn("""
        import sys
        import gpushm
        print(*sorted({'numpy', 'torch', 'jax', 'tqdm', 'IPython', 'subprocess'} & set(sys.modules)))
        """)
    assert child.succeed() == "\n"
