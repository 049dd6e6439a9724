# SPDX-License-Identifier: Apache-2.0
"""Runs of programs over the CUDA runtime and the driver alone."""

import os
import shutil
import tempfile
import time

from containers import HOST, Container, Setting
from pairs import group, judge, opened, pair, plain_pair, volume


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
    # Processes that share PIDs and /dev/shm need no library: with it they must work as before.
    for preload, domain in ((False, False), (True, False), (True, True)):
        if preload and not context.libraries:
            context.skip("plain processes with the library", context.why_no_library)
            continue
        env = {"GPUSHM_SOCKET": context.domain.socket} if domain and context.start_domain() else {}
        found = plain_pair(
            context,
            lambda role, folder: [
                f"{context.prepared}/bin/runtime",
                ("produce", "consume")[role],
                folder,
            ],
            preload,
            env=env,
        )
        found["domain"] = domain
        parts.append(
            judge(
                found,
                "memory and event work, the wait is exact",
                memory=opened(found),
                event=found["second"].get("event_open") == "ok",
                wait_is_exact=found["second"].get("waited_for_held_work") is True,
            )
        )
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
    patience = {
        "UNMODIFIED_PATIENCE": "150"
    }  # of the exporter, while the importer opens and closes

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
        times = many if mode == "domain" else few
        found = pair(
            context,
            mode,
            lambda role, times=times: [
                "/proofs/prepared/bin/cost",
                ("export", "import")[role],
                "/shared",
                *([str(times)] if role else []),
            ],
            seconds=120,
            first={"env": dict(patience)},
        )
        second = found["second"]
        kinds = ("memory", "event", "descriptor") if mode == "domain" else ("memory", "event")
        parts.append(
            judge(
                found,
                "no error, no descriptor and no mapping left",
                **{
                    f"{kind}_{count}": second.get(f"{kind}_{count}") == 0
                    for kind in kinds
                    for count in ("error", "errors", "descriptors_left", "mappings_left")
                },
            )
        )
    # PIDs that differ: nothing is rewritten.
    for preload in (False, True):
        if preload and not context.libraries:
            context.skip("plain processes with the library", context.why_no_library)
            continue
        env = dict(patience)
        if preload and context.start_domain():
            env["GPUSHM_SOCKET"] = context.domain.socket
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
