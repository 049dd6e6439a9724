# SPDX-License-Identifier: Apache-2.0
"""What the runs share: the libraries as a container gets them, a broker's domain, pairs of
containers and what they print.

A pair of containers is run in one of these modes:

    without    no library of gpushm in either
    importer   libgpushm-ipc.so in the importer (the second) only, no domain
    exporter   ... in the exporter (the first) only, no domain
    library    ... in both, no domain
    domain     ... in both, with a broker's domain

Distinct objects: safe. Shared objects: unsafe.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from containers import Container, Network, Setting, Tools, all_minors, link

INSIDE = "/run/gpushm/ipc"
PRELOAD = INSIDE + "/libgpushm-ipc.so"
DOMAIN = "/run/gpushm/d/unmodified"
HERE = os.path.dirname(os.path.abspath(__file__))
# Set below `run-with-fake-gpus`, by which the driver-API programs and this file are tried without a GPU.
FAKE = os.environ.get("GPUSHM_FAKE_GPU_ROOT", "")
FOREIGN = re.compile(
    r"^(ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libcuda\.so|libnvidia)"
)


class CannotRunError(Exception):
    """A run or a part of it that cannot be made here."""


class Context:
    """What a run gets: tools, folders, modes, time."""

    def __init__(self, arguments):
        self.prepared = arguments.prepared
        self.out = arguments.out
        self.quick = arguments.quick
        self.until = time.monotonic() + arguments.limit
        self.tools = Tools.find(arguments.prepared)
        self.minors = all_minors() or [0]
        self.libraries, self.why_no_library = self.find_libraries(arguments.dist)
        self.gpushm = self.find(arguments.dist, "gpushm")
        self.domain = None
        self.log = True  # of the library, for each call
        self.whole_text = False  # of programs that ended well, too
        self.skipped = []

    @staticmethod
    def find(folder, name):
        found = (
            [p for p in glob.glob(f"{folder}/**/{name}", recursive=True) if os.path.isfile(p)]
            if folder
            else []
        )
        return min(found, key=len) if found else ""

    def find_libraries(self, dist):
        """A folder with the library and what it opens, as a container gets it, and why there is none."""
        library = self.find(dist, "libgpushm-ipc.so")
        if not library:
            return "", f"no libgpushm-ipc.so below {dist}"
        folder = tempfile.mkdtemp(prefix="unmodified-lib-")
        os.chmod(folder, 0o755)
        shutil.copy(library, folder)
        client = self.find(dist, "libgpushm.so.1")
        if client:
            shutil.copy(client, folder)
            listed = subprocess.run(["ldd", client], capture_output=True, text=True).stdout
            for line in listed.splitlines():
                words = line.split()
                # Only what an image may lack; the C++ runtime of the machine is in /usr.
                if (
                    len(words) > 2
                    and words[1] == "=>"
                    and words[2].startswith("/")
                    and not words[2].startswith(("/usr/", "/lib/"))
                    and not FOREIGN.match(words[0])
                ):
                    shutil.copy(words[2], folder)
        return folder, ""

    def left(self):
        return self.until - time.monotonic()

    def modes(self, *wanted):
        for mode in wanted:
            if mode != "without" and not self.libraries:
                self.skip(mode, self.why_no_library)
            elif mode == "domain" and not self.start_domain():
                self.skip(mode, "no broker")
            else:
                yield mode

    def skip(self, part, why):
        self.skipped.append({"what": part, "why": why})

    def start_domain(self):
        if self.domain is None and self.gpushm:
            self.domain = Domain(self.gpushm)
        return self.domain is not None and self.domain.works()

    def setting(self, mode, first, **more):
        """The setting of one side of a pair."""
        preload = mode in ("library", "domain") or mode == ("exporter" if first else "importer")
        made = Setting(
            **{"uid": 1000 if first else 2000, "hostname": "first" if first else "second", **more}
        )
        made.mounts = [
            (HERE, "/proofs/scripts", False),
            (self.prepared, "/proofs/prepared", False),
            *made.mounts,
        ]
        made.env = {
            "UNMODIFIED_PATIENCE": "15",
            "GPUSHM_IPC_LOG": "1" if preload and self.log else "0",
            **made.env,
        }
        libraries = made.env.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
        made.env["LD_LIBRARY_PATH"] = "/proofs/prepared/lib" + (
            ":" + libraries if libraries else ""
        )
        if FAKE:
            driver = os.environ["LD_LIBRARY_PATH"].split(":")[0]
            made.mounts += [(FAKE, FAKE, True), (driver, driver, False)]
            made.env.update(
                {key: value for key, value in os.environ.items() if key.startswith("GPUSHM_")}
            )
        if preload:
            made.preload = PRELOAD
            made.mounts.append((self.libraries, INSIDE, False))
        if mode == "library":
            made.env["GPUSHM_IPC_EVENTS"] = "complete"
        if mode == "domain":
            made.mounts.append((self.domain.folder, DOMAIN, True))
        return made


class Domain:
    """A broker on the machine, whose folder the containers get."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="unmodified-domain-")
        os.chmod(self.folder, 0o755)
        self.socket = f"{self.folder}/socket"
        self.log = open(f"{self.folder}/log", "w")
        self.process = subprocess.Popen(
            [
                program,
                "serve",
                "--socket",
                self.socket,
                "--mode",
                "0666",
                *(["--accept-fake-chunks"] if FAKE else []),
            ],
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        until = time.monotonic() + 10
        while (
            not os.path.exists(self.socket)
            and self.process.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.01)
        self.program = program

    def works(self):
        return self.process.poll() is None and os.path.exists(self.socket)

    def segments(self):
        """What is registered now."""
        for arguments in (["ls", "--all", "--json"], ["ls", "--json"]):
            listed = subprocess.run(
                [self.program, *arguments, "--socket", self.socket],
                capture_output=True,
                text=True,
                timeout=10,
            )
            if listed.returncode == 0:
                return [json.loads(line) for line in listed.stdout.splitlines()][:20]
        return listed.stderr[-300:]

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        with open(f"{self.folder}/log", errors="replace") as file:
            text = file.read()
        shutil.rmtree(self.folder, ignore_errors=True)
        return text[-2000:]


def results_of(text):
    """The RESULT lines of a program, merged."""
    merged = {}
    for line in text.splitlines():
        if line.startswith("RESULT "):
            with contextlib.suppress(ValueError):
                merged.update(json.loads(line[7:]))
    return merged


def side_of(context, exit_status, text):
    found = results_of(text)
    side = {"exit": exit_status, **found}
    notes = [line for line in text.splitlines() if not line.startswith("RESULT ")]
    if exit_status != 0 or context.whole_text or not found:
        side["output"] = "\n".join(notes)[-(40000 if context.whole_text else 1500) :]
    counts = {}
    for line in notes:
        if "gpushm-ipc" in line or "gpushm_ipc" in line or line.startswith("gpushm"):
            kind = re.sub(r"0x[0-9a-f]+|\d+", "N", line)[:160]
            counts[kind] = counts.get(kind, 0) + 1
    if counts:
        side["library_log"] = [f"{count}x {line}" for line, count in list(counts.items())[:12]]
    return side


def namespaces_of(pid, until):
    """What isolates the program, once the runtime's own process has become it."""
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            with open(f"/proc/{pid}/comm") as file:
                if not file.read().startswith("runc"):
                    break
            time.sleep(0.001)
    found = {}
    for kind in ("pid", "ipc", "uts", "mnt", "net", "cgroup"):
        with contextlib.suppress(OSError):
            found[kind] = (
                os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino
            )
    facts = {"shared_with_machine": [kind for kind, same in found.items() if same]}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key in ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "NSpid"):
                facts[key] = value.split()[-1] if key != "Uid" else value.split()[0]
    return facts


@contextlib.contextmanager
def volume():
    """A shared folder that every uid can write: an emptyDir."""
    folder = tempfile.mkdtemp(prefix="unmodified-volume-")
    os.chmod(folder, 0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def group(context, sides, seconds, isolation=False):
    """Runs containers at the same time, of a list of (Setting, argv). Returns a dictionary each."""
    until = min(time.monotonic() + seconds, context.until)
    started = []
    facts = []
    try:
        for number, (setting, argv) in enumerate(sides):
            started.append(Container(context.tools, setting, argv, f"container {number}"))
        if isolation:
            with contextlib.suppress(RuntimeError):  # the side that did not start says so itself
                facts = [namespaces_of(each.pid(until), until) for each in started]
        found = []
        for each in started:
            status = each.wait(until)
            found.append((each, "no end in time" if status is None else status))
        sides_found = [
            side_of(
                context,
                status,
                each.text() + ("" if status in (0, 1) else "\n" + each.log()[-300:]),
            )
            for each, status in found
        ]
        for side, fact in zip(sides_found, facts, strict=False):
            side["isolation"] = fact
        return sides_found
    finally:
        for each in started:
            each.close()


def pair(context, mode, argv_of, seconds=25, isolation=False, first=None, second=None):
    """Two containers with a volume at /shared. `first`, `second`: more settings."""
    begin = time.monotonic()
    with volume() as folder:
        sides = []
        for role, more in enumerate((dict(first or {}), dict(second or {}))):
            more["mounts"] = [*more.get("mounts", []), (folder, "/shared", True)]
            sides.append((context.setting(mode, role == 0, **more), argv_of(role)))
        one, two = group(context, sides, seconds, isolation)
    return {
        "mode": mode,
        "first": one,
        "second": two,
        "seconds": round(time.monotonic() - begin, 2),
    }


def plain_pair(context, argv_of, preload, seconds=25, env=None):
    """Two processes of this machine's own namespaces. `argv_of(role, folder)`."""
    begin = time.monotonic()
    environment = {**os.environ, "UNMODIFIED_PATIENCE": "15", **(env or {})}
    paths = [f"{context.prepared}/lib", environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    if preload:
        environment["LD_PRELOAD"] = context.libraries + "/libgpushm-ipc.so"
    with volume() as folder:
        started = []
        try:
            for role in (0, 1):
                log = open(f"{folder}/log{role}", "w+")
                started.append(
                    (
                        subprocess.Popen(
                            argv_of(role, folder),
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            env=environment,
                            start_new_session=True,
                        ),
                        log,
                    )
                )
            sides = []
            for process, log in started:
                try:
                    status = process.wait(
                        max(0.1, min(begin + seconds, context.until) - time.monotonic())
                    )
                except subprocess.TimeoutExpired:
                    status = "no end in time"
                log.seek(0)
                sides.append(side_of(context, status, log.read()))
        finally:
            for process, log in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                log.close()
    return {
        "mode": "plain processes" + (", with the library" if preload else ""),
        "first": sides[0],
        "second": sides[1],
        "seconds": round(time.monotonic() - begin, 2),
    }


@contextlib.contextmanager
def networks(context, shared):
    """Paths of two network namespaces, their device, and what they are: of one pod, or of two."""
    made = [Network()] if shared else [Network(), Network()]
    try:
        if not shared:
            try:
                link(*made)
            except OSError as why:
                context.skip("networks of two pods", f"{why}; one network for both instead")
                shared = True
        if shared:
            yield made[0].path, made[0].path, "lo", "one, as of the containers of a pod"
        else:
            yield made[0].path, made[1].path, "pod0", "one each, as of two pods"
    finally:
        for each in made:
            each.close()


def opened(pair):
    """Whether both sides of the runtime's pair saw the right bytes."""
    return pair["first"].get("wrong_bytes_back") == 0 and pair["second"].get("wrong_bytes") == 0


def judge(pair, expected, **facts):
    """Adds what was expected and whether it came."""
    pair["expected"] = expected
    pair["as_expected"] = all(bool(value) for value in facts.values())
    if not pair["as_expected"]:
        pair["not_as_expected"] = sorted(key for key, value in facts.items() if not value)
    return pair


def python_argv(script, *words):
    return [sys.executable, f"/proofs/scripts/{script}", *words]
