# SPDX-License-Identifier: Apache-2.0
"""One rank of two of PyTorch's NCCL backend, as it is: sums whose results are known, and their
bandwidth. Nothing of gpushm.

    nccl_pair.py RANK DIR

The ranks meet by a file in DIR. What NCCL chose (NCCL_DEBUG=INFO) is read from its log: `via`
counts the lines of channels. Exit status 0: every element was right.
"""

import collections
import datetime
import json
import os
import re
import sys
import time

rank, folder = int(sys.argv[1]), sys.argv[2]
log = f"{folder}/nccl.{rank}.log"
os.environ["NCCL_DEBUG_FILE"] = log

import torch  # noqa: E402  (after the variables that NCCL reads)
import torch.distributed as dist  # noqa: E402

report = {
    "rank": rank,
    "pid": os.getpid(),
    "torch": torch.__version__,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    "ok": False,
}
try:
    torch.cuda.set_device(0)
    # Ranks of different uids: the file must be there before the first of them would create it.
    os.umask(0)
    os.close(os.open(f"{folder}/meeting", os.O_RDWR | os.O_CREAT, 0o666))
    begin = time.perf_counter()
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=30),
        device_id=torch.device("cuda:0"),
    )
    small = torch.full((1000,), float(rank + 1), device="cuda")
    dist.all_reduce(small)
    torch.cuda.synchronize()
    report["first_sum_s"] = round(time.perf_counter() - begin, 2)
    good = bool((small == 3).all().item())
    large = torch.empty(64 << 20, device="cuda")  # 256 MiB
    times = []
    for i in range(6):
        large.fill_(float(rank + 1 + i))
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(large)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        good = good and bool((large == 3 + 2 * i).all().item())
    received = torch.zeros(16 << 20, device="cuda")
    if rank == 0:
        dist.send(torch.arange(16 << 20, device="cuda", dtype=torch.float32), 1)
    else:
        dist.recv(received, 0)
        good = good and torch.equal(
            received, torch.arange(16 << 20, device="cuda", dtype=torch.float32)
        )
    torch.cuda.synchronize()
    report["ok"] = good
    # Of two ranks the bus moves as many bytes as the buffer has.
    report["all_reduce_256_mib_gb_s"] = round(large.numel() * 4 / min(times) * 1e-9, 2)
except Exception as failure:
    report["error"] = f"{type(failure).__name__}: {str(failure)[:400]}"
text = ""
if os.path.exists(log):
    with open(log, errors="replace") as file:
        text = file.read()
report["via"] = dict(collections.Counter(re.findall(r"\bvia (\S+(?: ?[/\w]*GDRDMA)?)", text)))
report["log"] = [
    re.sub(r"^\S+:\d+:\d+ \[\d+\] ", "", line)[:220]
    for line in text.splitlines()
    if re.search(
        r"WARN|NCCL_HOSTID|P2P is disabled|p2p|isAllDirectP2p|cuMem|Cuda failure|nNodes|"
        r"Using network|localRanks",
        line,
    )
][:24]
print("RESULT " + json.dumps(report), flush=True)
os._exit(0 if report["ok"] else 1)
