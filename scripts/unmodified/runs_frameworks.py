# SPDX-License-Identifier: Apache-2.0
"""Runs of frameworks as they are released: PyTorch, UCX, NCCL, vLLM."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from pairs import HERE, CannotRunError, group, judge, networks, pair, plain_pair, python_argv


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
        raise CannotRunError("prepare.sh made no bin/ucx_get")
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
        add(kind, "the machine's own", lambda more, kind=kind: plain(kind, more))
        for mode in context.modes("without", "domain"):
            add(
                kind,
                "own PID, IPC, UTS, mount and network namespaces",
                lambda more, kind=kind, mode=mode: isolated(kind, mode, more),
            )
    return parts


def run_nccl(context):
    """PyTorch's NCCL between two containers (nccl_pair.py)."""
    parts = []
    if len(context.minors) < 2:
        raise CannotRunError("one GPU: NCCL wants one a rank")
    nodes_both, nodes_own = context.minors[:2], None
    one_shm = tempfile.mkdtemp(prefix="unmodified-", dir="/dev/shm")
    os.chmod(one_shm, 0o1777)
    hostid = {"NCCL_HOSTID": "one"}
    legacy = {"NCCL_HOSTID": "one", "NCCL_CUMEM_ENABLE": "0"}
    together = "one network, both GPUs' nodes, NCCL_HOSTID"
    apart = "two pods, both GPUs' nodes, NCCL_HOSTID"
    alone = "one network, own GPU only, NCCL_HOSTID"
    # what, mode, nodes, environment, /dev/shm, one network for both
    variants = [
        ("two pods, own GPU only", "without", nodes_own, {}, "", False),
        (f"{together}, one /dev/shm", "without", nodes_both, hostid, one_shm, True),
        (f"{together}, one /dev/shm", "domain", nodes_both, hostid, one_shm, True),
        (f"{together}, one /dev/shm, legacy handles", "domain", nodes_both, legacy, one_shm, True),
        (f"{together}", "without", nodes_both, hostid, "", True),
        (f"{together}", "domain", nodes_both, hostid, "", True),
        (f"{together}, legacy handles", "domain", nodes_both, legacy, "", True),
        (f"{apart}", "without", nodes_both, hostid, "", False),
        (f"{apart}", "domain", nodes_both, hostid, "", False),
        (f"{apart}, legacy handles", "domain", nodes_both, legacy, "", False),
        (f"{alone}, one /dev/shm", "domain", nodes_own, hostid, one_shm, True),
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
        raise CannotRunError(
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
                    raise CannotRunError("cannot make the model: " + made.stderr[-500:])
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
                # The caches are the engine's.
                first={"mounts": list(mounts), "env": {**env, "VLLM_CACHE_ROOT": "/tmp/cache"}},
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
