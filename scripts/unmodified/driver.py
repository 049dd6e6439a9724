# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of run.sh, which documents the options. Writes one JSON document for each run.

A pair of containers is run in one of these modes:

    without    no library of gpushm in either
    importer   libgpushm-ipc.so in the importer (the second) only, no domain
    exporter   … in the exporter (the first) only, no domain
    library    … in both, no domain
    domain     … in both, with a broker's domain

Each document has `expected` and `as_expected` for what was known before (FACTS I1 to I7, U1 to U3, decision 42), and says what
was skipped and why. Nothing here is a test of CI: it needs a GPU.
"""

import argparse
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

from containers import HOST, Container, Network, Setting, Tools, all_minors, device_nodes, link

INSIDE = "/run/gpushm/ipc"
PRELOAD = INSIDE + "/libgpushm-ipc.so"
DOMAIN = "/run/gpushm/d/unmodified"
HERE = os.path.dirname(os.path.abspath(__file__))
# Set below `run-with-fake-gpus`, by which the driver-API programs and this file are tried without a GPU.
FAKE = os.environ.get("GPUSHM_FAKE_GPU_ROOT", "")
FOREIGN = re.compile(
    r"^(ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libcuda\.so|libnvidia)"
)


class Skipped(Exception):
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
                if (
                    len(words) > 2
                    and words[1] == "=>"
                    and words[2].startswith("/")
                    and not FOREIGN.match(words[0])
                ):
                    # Only what an image may lack; the C++ runtime of the machine is in /usr.
                    if not words[2].startswith(("/usr/", "/lib/")):
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

    def skip(self, what, why):
        self.skipped.append({"what": what, "why": why})

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
    """Runs the containers at the same time. `sides` is a list of (Setting, argv). Returns one dictionary each."""
    until = min(time.monotonic() + seconds, context.until)
    started = []
    facts = []
    try:
        for number, (setting, argv) in enumerate(sides):
            started.append(Container(context.tools, setting, argv, f"container {number}"))
        if isolation:
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
        for side, fact in zip(sides_found, facts):
            side["isolation"] = fact
        return sides_found
    finally:
        for each in started:
            each.close()


def pair(context, mode, argv_of, seconds=25, isolation=False, first=None, second=None):
    """Two containers with a volume at /shared. `argv_of(role)` with role 0 and 1; `first`, `second`: more settings."""
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
    environment = dict(os.environ, UNMODIFIED_PATIENCE="15", **(env or {}))
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
    """Two paths of network namespaces, their device, and what they are: of one pod (`shared`), or of two pods of a node."""
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


def opened(found):
    """Whether both sides of the runtime's pair saw the right bytes."""
    return found["first"].get("wrong_bytes_back") == 0 and found["second"].get("wrong_bytes") == 0


def judge(found, expected, **facts):
    """Adds what was expected and whether it came."""
    found["expected"] = expected
    found["as_expected"] = all(bool(value) for value in facts.values())
    if not found["as_expected"]:
        found["not_as_expected"] = sorted(key for key, value in facts.items() if not value)
    return found


def run_runtime(context):
    """Producer and consumer of the CUDA runtime (runtime.cu)."""
    parts = []

    def one(mode, program, size, big=0, **more):
        options = ["--bytes", str(size)] + (["--big", str(big)] if big else [])
        found = pair(
            context,
            mode,
            lambda role: [
                f"/proofs/prepared/bin/{program}",
                ("produce", "consume")[role],
                "/shared",
                *options,
                *more.get("options", {}).get(role, []),
            ],
            isolation=not parts,
            first=more.get("first"),
            second=more.get("second"),
        )
        found.update(program=program, bytes=size)
        both = {"both_pid_1": found["first"].get("pid") == 1 and found["second"].get("pid") == 1}
        memory, event = (
            found["second"].get("memory_open", ""),
            found["second"].get("event_open", ""),
        )
        own = found["first"].get("own_handle", "").startswith("201")
        if mode in ("without", "exporter"):
            judge(
                found,
                "memory: 201 invalid device context; event: an error",
                **both,
                own_handle_refused=own,
                memory_refused=memory.startswith("201"),
                event_refused=event not in ("", "ok"),
            )
        elif mode == "importer":
            judge(
                found,
                "memory works; event: an error",
                **both,
                own_handle_refused=own,
                memory=opened(found),
                event_refused=event not in ("", "ok"),
            )
        else:
            data = (
                found["second"].get("wrong_after_wait") == 0
                and found["first"].get("wrong_after_consumers_record") == 0
            )
            waited = found["second"].get("waited_for_held_work")
            judge(
                found,
                "memory and event work"
                + (
                    "; the event's wait is exact"
                    if mode == "domain"
                    else "; records complete their work"
                ),
                **both,
                own_handle_refused=own,
                memory=opened(found),
                event=event == "ok",
                data_after_waits=data,
                wait_is_exact=waited is True if mode == "domain" else True,
            )
        parts.append(found)

    mib = 1 << 20
    big = 64 if context.quick else 1024
    for mode in context.modes("without", "domain"):
        one(mode, "runtime", mib, big if mode == "domain" else 0)
    for mode in context.modes("domain", "library"):
        one(mode, "runtime", 40)
    for mode in context.modes("without", "domain"):
        one(mode, "runtime_shared", mib)
    for mode in context.modes("library", "importer", "exporter"):
        one(mode, "runtime", mib, big if mode == "library" else 0)
    for mode in context.modes("library"):
        one(mode, "runtime_shared", mib)
    if len(context.minors) > 1:
        both = {"gpus": context.minors[:2]}
        for mode in context.modes("domain"):
            one(mode, "runtime", mib, big, first=both, second=both, options={1: ["--device", "1"]})
            parts[-1]["gpus"] = "memory of GPU 0, importer on GPU 1"
    else:
        context.skip("an importer on another GPU", "one GPU")
    return parts


def run_three(context):
    """Three exporters of PID 1 with equal sizes (three.cpp)."""
    parts = []
    names = ["a", "b", "c"]
    for mode in context.modes("domain", "library"):
        with volume() as folder:
            mount = {"mounts": [(folder, "/shared", True)]}
            sides = [
                (
                    context.setting(mode, True, **{**mount, "mounts": list(mount["mounts"])}),
                    ["/proofs/prepared/bin/three", "export", "/shared", name, str(number + 1)],
                )
                for number, name in enumerate(names)
            ]
            sides.append(
                (
                    context.setting(mode, False, **{**mount, "mounts": list(mount["mounts"])}),
                    ["/proofs/prepared/bin/three", "import", "/shared", *names],
                )
            )
            *exporters, importer = group(context, sides, 40)
        parts.append(
            judge(
                {"mode": mode, "exporters": exporters, "importer": importer},
                "all three open at once, each with its own bytes; the handle of a dead exporter is refused",
                all_pid_1=all(side.get("pid") == 1 for side in (*exporters, importer)),
                opened=all(importer.get("open_" + name) == 0 for name in names),
                separate=importer.get("different_mappings") == 3,
                bytes=all(importer.get("wrong_words_" + name) == 0 for name in names),
                bytes_back=all(side.get("wrong_words_back") == 0 for side in exporters),
                untouched=all(side.get("wrong_words_unopened") == 0 for side in exporters),
                dead_refused=importer.get("last_exporter_ended")
                and importer.get("open_of_the_dead", 0) != 0,
                alive_after_death=importer.get("wrong_words_after_death") == 0,
            )
        )
    return parts


def run_cost(context):
    """Costs with and without the library (cost.cpp)."""
    parts = []
    program = f"{context.prepared}/bin/cost"
    few, many = (200, 1000) if context.quick else (20000, 100000)

    def alone(mode, *words, seconds=60):
        found = group(
            context, [(context.setting(mode, True), ["/proofs/prepared/bin/cost", *words])], seconds
        )[0]
        parts.append({"mode": mode, "what": " ".join(words), **found})

    for mode in context.modes("without", "library", "domain"):
        alone(mode, "calls")
        alone(mode, "exports", str(few // 10))
        if mode == "without":
            continue
        found = pair(
            context,
            mode,
            lambda role: [
                "/proofs/prepared/bin/cost",
                ("export", "import")[role],
                "/shared",
                *([str(many if mode == "domain" else few)] if role else []),
            ],
            seconds=120,
        )
        second = found["second"]
        kinds = ("memory", "event", "descriptor") if mode == "domain" else ("memory", "event")
        parts.append(
            judge(
                found,
                "no error, no descriptor and no mapping left",
                **{
                    f"{kind}_{what}": second.get(f"{kind}_{what}") == 0
                    for kind in kinds
                    for what in ("error", "errors", "descriptors_left", "mappings_left")
                },
            )
        )
    # PIDs that differ: nothing is rewritten.
    for preload in (False, True):
        if preload and not context.libraries:
            context.skip("plain processes with the library", context.why_no_library)
            continue
        env = {"GPUSHM_SOCKET": context.domain.socket} if preload and context.start_domain() else {}
        parts.append(
            plain_pair(
                context,
                lambda role, folder: [
                    program,
                    ("export", "import")[role],
                    folder,
                    *([str(few)] if role else []),
                ],
                preload,
                90,
                env,
            )
        )
    return parts


# hostIPC, hostPID, shareProcessNamespace, privileged, both GPUs for both, published result
PUBLISHED = {
    "T1": [
        (2, 1, 1, 0, 1, 0, "success"),
        (4, 0, 1, 0, 1, 0, "success"),
        (5, 1, 0, 0, 1, 0, "invalid device context"),
        (8, 1, 1, 0, 0, 0, "invalid argument"),
        (9, 0, 0, 0, 1, 0, "invalid device context"),
        (12, 0, 1, 0, 0, 0, "invalid argument"),
        (13, 1, 0, 0, 0, 0, "invalid device context"),
        (15, 0, 0, 0, 0, 0, "invalid device context"),
    ],
    "T2": [
        (34, 1, 1, 0, 1, 1, "success"),
        (36, 0, 1, 0, 1, 1, "success"),
        (37, 1, 0, 0, 1, 1, "invalid device context"),
        (40, 1, 1, 0, 0, 1, "success"),
        (41, 0, 0, 0, 1, 1, "invalid device context"),
        (44, 0, 1, 0, 0, 1, "success"),
        (45, 1, 0, 0, 0, 1, "invalid device context"),
        (47, 0, 0, 0, 0, 1, "invalid device context"),
    ],
    # The rows that T3 does not share with T2.
    "T3": [
        (54, 1, 0, 1, 1, 1, "success"),
        (62, 1, 0, 1, 0, 1, "success"),
        (64, 0, 0, 1, 0, 1, "success"),
    ],
}


def row_pair(context, mode, row, size):
    """The pair of a published row. The published containers are the main programs of their pods."""
    _, ipc, pid, share, privileged, both, _ = row
    pause = None
    shm = tempfile.mkdtemp(prefix="unmodified-", dir="/dev/shm") if share else ""
    if shm:
        os.chmod(shm, 0o1777)
    first_gpu, second_gpu = context.minors[0], context.minors[-1]
    sides = []
    try:
        place = {}
        if share:
            pause = Container(
                context.tools,
                Setting(uid=65535, gpus=[], ipc=HOST if ipc else ""),
                ["/bin/sleep", "60"],
                "pause",
            )
            at = f"/proc/{pause.pid(time.monotonic() + 10)}/ns/"
            place = {"pid": at + "pid", "ipc": HOST if ipc else at + "ipc", "net": at + "net"}
        for role in (0, 1):
            minors = (
                context.minors
                if privileged
                else sorted({first_gpu, second_gpu})
                if both
                else [(first_gpu, second_gpu)[role]]
            )
            more = {"gpus": minors, "privileged": bool(privileged), **place}
            if pid:
                more["pid"] = HOST
            if ipc:
                more["ipc"] = HOST
            more["shm"] = "/dev/shm" if ipc else shm
            sides.append(more)
        importer_device = ["--device", "1"] if both and second_gpu != first_gpu else []
        return pair(
            context,
            mode,
            lambda role: [
                "/proofs/prepared/bin/runtime",
                ("produce", "consume")[role],
                "/shared",
                "--bytes",
                "1048576",
                "--big",
                str(size),
                *(importer_device if role else []),
            ],
            first=sides[0],
            second=sides[1],
        )
    finally:
        if pause:
            pause.close()
        if shm:
            shutil.rmtree(shm, ignore_errors=True)


def run_rows(context):
    """The rows of the three published tables, as they are and with the library."""
    parts = []
    for table, rows in PUBLISHED.items():
        for row in rows:
            number, ipc, pid, share, privileged, both, published = row
            name = f"row {number}"
            if len(context.minors) < 2 and not both:
                context.skip(name, "one GPU: it needs two")
                continue
            part = {
                "table": table if table != "T2" else "T2, T3",
                "row": number,
                "hostIPC": bool(ipc),
                "hostPID": bool(pid),
                "shareProcessNamespace": bool(share),
                "privileged": bool(privileged),
                "gpus": "both for each" if both else "one each",
                "published": published,
            }
            allowed = both or privileged
            good = True
            for mode in context.modes("without", "domain"):
                if context.left() < 30:
                    context.skip(f"{name}, {mode}", "no time left")
                    good = False
                    continue
                found = row_pair(context, mode, row, 16 if context.quick else 256)
                second = found["second"]
                result = (
                    "success"
                    if opened(found)
                    else second.get("memory_open", second.get("output", ""))[-200:]
                )
                part[mode] = {
                    "result": result,
                    "pids": [found["first"].get("pid"), second.get("pid")],
                    **{
                        key: second[key]
                        for key in (
                            "first_open_us",
                            "open_us",
                            "big_open_us",
                            "event_open",
                            "waited_for_held_work",
                            "copy_from_mapping_gb_s",
                            "copy_to_mapping_gb_s",
                            "copy_own_memory_gb_s",
                        )
                        if key in second
                    },
                    "event_exact": second.get("waited_for_held_work"),
                }
                if found["first"].get("exit") not in (0, 1) or second.get("exit") not in (0, 1):
                    part[mode]["whole"] = found
                if mode == "without":
                    good = good and (
                        result == "success" if published == "success" else published in result
                    )
                else:
                    good = good and (result == "success") == bool(allowed)
            parts.append(
                judge(
                    part,
                    "as published without; success with the library wherever both may open the GPU",
                    good=good,
                )
            )
    return parts


def python_argv(script, *words):
    return [sys.executable, f"/proofs/scripts/{script}", *words]


def run_torch(context):
    """PyTorch's tensors over a Unix socket (torch_pair.py)."""
    parts = []
    expandable = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    for allocator, env in (("cudaMalloc", {}), ("expandable segments", expandable)):
        for mode in context.modes("without", "domain", "library"):
            if mode == "library" and allocator != "cudaMalloc":
                context.skip("library, expandable segments", "descriptors need a domain")
                continue
            if context.left() < 60:
                context.skip(f"{mode}, {allocator}", "no time left")
                continue
            found = pair(
                context,
                mode,
                lambda role: python_argv(
                    "torch_pair.py",
                    ("first", "second")[role],
                    "/shared",
                    *(["--few"] if context.quick else []),
                ),
                seconds=55,
                first={"env": dict(env)},
                second={"env": dict(env)},
            )
            found["allocator"] = allocator
            works = all(found[side].get("ok") is True for side in ("first", "second"))
            if mode == "without":
                judge(found, "refused", refused=not works and bool(found["second"].get("error")))
            else:
                # PyTorch sends an event with each tensor; without a domain its export waits for the work.
                busy = [
                    each.get("stream_busy_after_send")
                    for side in ("first", "second")
                    for each in found[side].get("busy", [])
                ]
                judge(
                    found,
                    "all tensors right in both directions, also behind a busy stream"
                    + ("; sending waits for no stream" if mode == "domain" else ""),
                    works=works,
                    both_pid_1=found["first"].get("pid") == 1 and found["second"].get("pid") == 1,
                    send_does_not_wait=mode != "domain"
                    or allocator != "cudaMalloc"
                    or (bool(busy) and all(busy)),
                )
            parts.append(found)
    # The counters by which PyTorch frees sent memory are in its /dev/shm.
    for mode in context.modes("domain"):
        shm = tempfile.mkdtemp(prefix="unmodified-", dir="/dev/shm")
        os.chmod(shm, 0o1777)
        try:
            if context.left() < 60:
                context.skip("domain, one /dev/shm", "no time left")
                continue
            found = pair(
                context,
                mode,
                lambda role: python_argv(
                    "torch_pair.py", ("first", "second")[role], "/shared", "--few"
                ),
                seconds=55,
                first={"shm": shm},
                second={"shm": shm, "uid": 1000},
            )
            found["allocator"] = "cudaMalloc, one /dev/shm, one uid"
            parts.append(
                judge(
                    found,
                    "the same; memory that was sent is freed once it was received",
                    works=all(found[side].get("ok") is True for side in ("first", "second")),
                )
            )
        finally:
            shutil.rmtree(shm, ignore_errors=True)
    return parts


def run_ucx(context):
    """UCX as released (ucx_get.cpp)."""
    parts = []
    if not os.path.exists(f"{context.prepared}/bin/ucx_get"):
        raise Skipped("prepare.sh made no bin/ucx_get")
    mib = "64" if context.quick else "512"
    roles = ("serve", "pull")

    def environment(base, more):
        lib = f"{base}/ucx/lib"
        return {
            "LD_LIBRARY_PATH": f"{lib}:{lib}/ucx:{base}/ucx/libucx_cu13.libs:"
            + os.environ.get("LD_LIBRARY_PATH", ""),
            "UCX_MODULE_DIR": f"{lib}/ucx",
            "UCX_TLS": "cuda_ipc,cuda_copy,tcp,self",
            "UCX_PROTO_INFO": "y",
            "UCX_LOG_LEVEL": "diag",
            **more,
        }

    def plain(kind, more):
        return plain_pair(
            context,
            lambda role, folder: [
                f"{context.prepared}/bin/ucx_get",
                roles[role],
                folder,
                kind,
                "0",
                mib,
            ],
            False,
            40,
            environment(context.prepared, more),
        )

    def isolated(kind, mode, more):
        env = environment("/proofs/prepared", more)
        # UCX needs a transport for its own messages: TCP between the pods.
        with networks(context, False) as (one, two, _, network):
            found = pair(
                context,
                mode,
                lambda role: [
                    "/proofs/prepared/bin/ucx_get",
                    roles[role],
                    "/shared",
                    kind,
                    "0",
                    mib,
                ],
                seconds=40,
                first={"env": dict(env), "net": one},
                second={"env": dict(env), "net": two},
            )
        return {"network": network, **found}

    def add(kind, namespaces, run):
        # Its cache of memory types, which catches allocations by patching the driver, is off in a second try.
        for more in ({}, {"UCX_MEMTYPE_CACHE": "n"}):
            found = run(more)
            second = found["second"]
            works = {
                how: second.get(how) == "ok" and second.get(how + "_wrong_words") == 0
                for how in ("get", "message")
            }
            text = second.get("output", "") + found["first"].get("output", "")
            for side in ("first", "second"):
                found[side]["output"] = "\n".join(
                    line
                    for line in found[side].get("output", "").splitlines()
                    if "| " not in line and "+--" not in line
                )[-800:]
            parts.append(
                {
                    "memory": kind,
                    "namespaces": namespaces,
                    "environment": more,
                    "works": works,
                    **found,
                    "transports": sorted(
                        set(re.findall(r"\b(?:cuda_ipc|cuda_copy|tcp|sysv|posix|cma)/\w+", text))
                    ),
                    "errors": sorted(
                        set(re.findall(r"UCX +(?:ERROR|WARN|DIAG) +(.{1,220})", text))
                    )[:8],
                }
            )
            if all(works.values()):
                break

    for kind in ("malloc", "vmm"):
        add(kind, "the machine's own", lambda more: plain(kind, more))
        for mode in context.modes("without", "domain"):
            add(
                kind,
                "own PID, IPC, UTS, mount and network namespaces",
                lambda more: isolated(kind, mode, more),
            )
    return parts


def run_nccl(context):
    """PyTorch's NCCL between two containers (nccl_pair.py)."""
    parts = []
    if len(context.minors) < 2:
        raise Skipped("one GPU: NCCL wants one a rank")
    nodes_both, nodes_own = context.minors[:2], None
    one_shm = tempfile.mkdtemp(prefix="unmodified-", dir="/dev/shm")
    os.chmod(one_shm, 0o1777)
    hostid = {"NCCL_HOSTID": "one"}
    legacy = {"NCCL_HOSTID": "one", "NCCL_CUMEM_ENABLE": "0"}
    # what, mode, nodes, environment, /dev/shm, one network for both
    variants = [
        ("two pods, own GPU only", "without", nodes_own, {}, "", False),
        ("two pods, both GPUs' nodes, NCCL_HOSTID", "without", nodes_both, hostid, "", False),
        ("two pods, both GPUs' nodes, NCCL_HOSTID", "domain", nodes_both, hostid, "", False),
        (
            "two pods, both GPUs' nodes, NCCL_HOSTID, legacy handles",
            "without",
            nodes_both,
            legacy,
            "",
            False,
        ),
        (
            "two pods, both GPUs' nodes, NCCL_HOSTID, legacy handles",
            "domain",
            nodes_both,
            legacy,
            "",
            False,
        ),
        ("one network, both GPUs' nodes, NCCL_HOSTID", "without", nodes_both, hostid, "", True),
        ("one network, both GPUs' nodes, NCCL_HOSTID", "domain", nodes_both, hostid, "", True),
        (
            "one network, both GPUs' nodes, NCCL_HOSTID, legacy handles",
            "domain",
            nodes_both,
            legacy,
            "",
            True,
        ),
        (
            "one network, own GPU only, NCCL_HOSTID, one /dev/shm",
            "domain",
            nodes_own,
            hostid,
            one_shm,
            True,
        ),
    ]
    try:
        for name, wanted, nodes, env, shm, shared in variants:
            for mode in context.modes(wanted):
                if context.left() < 50:
                    context.skip(f"{name}, {mode}", "no time left")
                    continue
                with networks(context, shared) as (*paths, device, network):
                    sides = []
                    for role in (0, 1):
                        own = context.minors[role]
                        visible = str(context.minors.index(own)) if nodes else "0"
                        sides.append(
                            {
                                "gpus": nodes or [own],
                                "net": paths[role],
                                "shm": shm,
                                "env": {
                                    "NCCL_DEBUG": "INFO",
                                    "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET,GRAPH",
                                    "NCCL_SOCKET_IFNAME": device,
                                    "GLOO_SOCKET_IFNAME": device,
                                    "NCCL_NVLS_ENABLE": "0",
                                    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
                                    "CUDA_VISIBLE_DEVICES": visible,
                                    **env,
                                },
                            }
                        )
                    found = pair(
                        context,
                        mode,
                        lambda role: python_argv("nccl_pair.py", str(role), "/shared"),
                        seconds=45,
                        first=sides[0],
                        second=sides[1],
                    )
                found.update(variant=name, network=network)
                found["works"] = all(found[side].get("ok") is True for side in ("first", "second"))
                parts.append(found)
    finally:
        shutil.rmtree(one_shm, ignore_errors=True)
    return parts


def run_vllm(context):
    """vLLM's "ipc" weight update between two containers (vllm_pair.py)."""
    if not os.path.exists("/tmp/site/vllm"):
        raise Skipped(
            "no vLLM in /tmp/site: carry what prepare.sh --engine made and run engine/setup.sh there"
        )
    parts = []
    os.makedirs("/tmp/models", exist_ok=True)
    cache = tempfile.mkdtemp(prefix="unmodified-cache-")
    os.chmod(cache, 0o777)
    env = {
        "PYTHONPATH": "/proofs/site:/proofs/engine/raystub",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_CACHE_ROOT": "/proofs/cache",
        "TORCHINDUCTOR_CACHE_DIR": "/proofs/cache/inductor",
        "TRITON_CACHE_DIR": "/proofs/cache/triton",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_PLUGINS": "",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "UNMODIFIED_PATIENCE": "150",
    }
    engine = (
        "/tmp/engine" if os.path.exists("/tmp/engine/raystub") else f"{context.prepared}/engine"
    )
    try:
        for seed in ("7", "8"):
            if not os.path.exists(f"/tmp/models/seed{seed}/config.json"):
                made = subprocess.run(
                    [
                        sys.executable,
                        f"{HERE}/vllm_pair.py",
                        "model",
                        f"/tmp/models/seed{seed}",
                        seed,
                        engine,
                    ],
                    capture_output=True,
                    text=True,
                    timeout=max(1, min(120, context.left())),
                    env=dict(os.environ, PYTHONPATH="/tmp/site"),
                )
                if made.returncode != 0:
                    raise Skipped("cannot make the model: " + made.stderr[-500:])
        mounts = [
            ("/tmp/site", "/proofs/site", False),
            (engine, "/proofs/engine", False),
            ("/tmp/models", "/proofs/models", False),
            (cache, "/proofs/cache", True),
        ]
        # What the second model generates, by vLLM's own loader: the tokens that the update must lead to.
        reference = group(
            context,
            [
                (
                    context.setting("without", False, mounts=list(mounts), env=dict(env)),
                    python_argv("vllm_pair.py", "reference", "/proofs/models/seed8"),
                )
            ],
            150,
        )[0]
        parts.append({"mode": "reference", **reference})
        for mode in context.modes("domain", "without"):
            if context.left() < 60:
                context.skip(mode, "no time left")
                continue
            found = pair(
                context,
                mode,
                lambda role: python_argv(
                    "vllm_pair.py",
                    ("trainer", "engine")[role],
                    "/shared",
                    "/proofs/models/seed7",
                    "/proofs/models/seed8",
                ),
                seconds=150,
                first={"mounts": list(mounts), "env": dict(env)},
                second={"mounts": list(mounts), "env": dict(env)},
            )
            second = found["second"]
            if mode == "without":
                judge(found, "refused", refused=second.get("updated") is False)
            else:
                judge(
                    found,
                    "the engine generates what the trainer's weights generate, and again what its own did",
                    both_pid_1=found["first"].get("pid") == 1 and second.get("pid") == 1,
                    updated=second.get("updated") is True,
                    tokens=bool(reference.get("tokens"))
                    and second.get("tokens_after") == reference.get("tokens"),
                    changed=second.get("tokens_before") != second.get("tokens_after"),
                    back=second.get("tokens_back") == second.get("tokens_before"),
                )
            parts.append(found)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return parts


# Shortest first; seconds that a run needs at least.
RUNS = {
    "three": (run_three, 20),
    "runtime": (run_runtime, 40),
    "ucx": (run_ucx, 40),
    "torch": (run_torch, 60),
    "cost": (run_cost, 60),
    "rows": (run_rows, 60),
    "nccl": (run_nccl, 60),
    "vllm": (run_vllm, 150),
}


def machine(context):
    def first_line(*command):
        try:
            return (
                subprocess.run(command, capture_output=True, text=True, timeout=30)
                .stdout.strip()
                .splitlines()
            )
        except (OSError, subprocess.TimeoutExpired):
            return []

    found = {
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "gpus": first_line(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ),
        "device_nodes": device_nodes(context.minors),
        "runc": first_line(*context.tools.runc, "--version")[:1],
        "python": sys.version.split()[0],
        "gpushm": first_line(context.gpushm, "--version")[:1] if context.gpushm else [],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return found


def main():
    parser = argparse.ArgumentParser(description="see run.sh")
    parser.add_argument("--prepared", required=True)
    parser.add_argument("--dist", default="")
    parser.add_argument("--out", default=os.environ.get("OUT") or "build/unmodified")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--limit", type=float, default=540)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"unknown run {unknown[0]}; known: {', '.join(RUNS)}")
    if os.geteuid() != 0:
        parser.error("needs root, for containers")
    os.makedirs(arguments.out, exist_ok=True)
    context = Context(arguments)
    facts = machine(context)
    made, bad = 0, []
    for name in [known for known in RUNS if known in names]:
        run, needed = RUNS[name]
        context.skipped = []
        context.log = name not in ("runtime", "cost", "rows")  # which measure
        context.whole_text = name == "ucx"
        document = {"run": name, "what": run.__doc__, "machine": facts, "parts": []}
        begin = time.monotonic()
        if context.left() < needed:
            context.skip(name, f"{context.left():.0f} s left, {needed} needed")
        else:
            try:
                document["parts"] = run(context)
            except Skipped as why:
                context.skip(name, str(why))
            except Exception as failure:  # the other runs go on
                document["failure"] = f"{type(failure).__name__}: {failure}"
        document["seconds"] = round(time.monotonic() - begin, 1)
        document["skipped"] = context.skipped
        judged = [part for part in document["parts"] if "as_expected" in part]
        surprises = [part for part in judged if not part["as_expected"]]
        document["summary"] = {
            "parts": len(document["parts"]),
            "as_expected": len(judged) - len(surprises),
            "not_as_expected": len(surprises),
            "skipped": len(context.skipped),
        }
        if context.domain is not None and context.domain.works():
            document["left_in_domain"] = context.domain.segments()
        made += bool(document["parts"])
        if surprises or "failure" in document:
            bad.append(name)
        with open(f"{arguments.out}/unmodified.{name}.json", "w") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
        print(
            f"{name}: {document['summary']} {document['seconds']} s {document.get('failure', '')}",
            flush=True,
        )
        for part in surprises:
            what = {
                key: part[key]
                for key in ("mode", "program", "allocator", "row", "not_as_expected")
                if key in part
            }
            print(f"  not as expected: {what}", flush=True)
        for skipped in context.skipped:
            print(f"  skipped: {skipped['what']}: {skipped['why']}", flush=True)
    if context.domain is not None:
        print("broker: " + context.domain.close().replace("\n", "\nbroker: "), flush=True)
    if context.libraries:
        shutil.rmtree(context.libraries, ignore_errors=True)
    return 1 if bad else 0 if made else 77


if __name__ == "__main__":
    sys.exit(main())
