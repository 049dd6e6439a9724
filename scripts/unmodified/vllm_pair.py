# SPDX-License-Identifier: Apache-2.0
"""The built-in "ipc" weight update of vLLM 0.24 between a trainer and an engine in other
containers. Nothing of gpushm.

    vllm_pair.py model DIR SEED ENGINE   writes a small random Llama by ENGINE/make_model.py;
                                         seeds other than 7 flip its weights
    vllm_pair.py reference MODEL         generates from MODEL as vLLM's own loader loads it
    vllm_pair.py trainer DIR OWN OTHER   sends the weights of OTHER, then of OWN, from the GPU
    vllm_pair.py engine DIR OWN OTHER    starts from OWN, updates twice, generates after each

The trainer calls vLLM's `trainer_send_weights`; what it hands over (pickled CUDA IPC handles, as
vLLM's HTTP transport sends them) goes to the engine's container over a Unix socket in DIR.

Exit status 0: both updates ended without an error. The driver compares the tokens.
"""

import base64
import glob
import json
import os
import pickle
import subprocess
import sys
import time

# The engine in this process, so that it is PID 1 of its container like the trainer.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def load(folder, device):
    from safetensors.torch import load_file

    tensors = {}
    for file in sorted(glob.glob(folder + "/*.safetensors")):
        tensors |= load_file(file, device=device)
    return tensors


def make_model(folder, seed, engine):
    subprocess.run([sys.executable, engine + "/make_model.py", folder, "small", "cuda"], check=True)
    if seed != "7":
        from safetensors.torch import save_file

        flipped = {
            name: tensor.flip(0).contiguous() if tensor.dim() == 2 else tensor.clone()
            for name, tensor in load(folder, "cpu").items()
        }
        save_file(flipped, folder + "/model.safetensors", metadata={"format": "pt"})
    # Written for their owner alone; safetensors reports each error of an open as a missing file.
    for file in glob.glob(folder + "/*"):
        os.chmod(file, 0o644)


def start_engine(model, report):
    begin = time.perf_counter()
    from vllm import LLM, SamplingParams
    from vllm.config import WeightTransferConfig

    engine = LLM(
        model=model,
        dtype="bfloat16",
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        max_model_len=512,
        max_num_seqs=8,
        seed=1,
        disable_log_stats=True,
        weight_transfer_config=WeightTransferConfig(backend="ipc"),
    )
    report["engine_start_s"] = round(time.perf_counter() - begin, 2)
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)

    def generate():
        outputs = engine.generate(
            [{"prompt_token_ids": [11, 12, 13, 14]}, {"prompt_token_ids": [21, 7, 300]}],
            sampling,
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    return engine, generate


def reference(model, report):
    _, generate = start_engine(model, report)
    report["tokens"] = generate()
    return True


def trainer(folder, own, other, report):
    import torch
    from torch_pair import connect
    from vllm.distributed.weight_transfer.ipc_engine import (
        IPCTrainerSendWeightsArgs,
        IPCWeightTransferEngine,
    )

    sets = [load(place, "cuda:0") for place in (other, own)]
    torch.cuda.synchronize()
    line = connect("first", folder + "/socket")
    report["gib"] = round(sum(t.numel() * t.element_size() for t in sets[0].values()) / 2**30, 3)

    def send(update):
        line.send(
            json.dumps(
                {
                    "names": update.names,
                    "dtype_names": update.dtype_names,
                    "shapes": update.shapes,
                    "packed": update.packed,
                    "ipc_handles_pickled": base64.b64encode(
                        pickle.dumps(update.ipc_handles)
                    ).decode(),
                }
            ).encode()
        )
        answer = json.loads(line.receive())
        if answer.get("error"):
            raise RuntimeError("the engine: " + answer["error"])

    for tensors in sets:
        line.receive()
        IPCWeightTransferEngine.trainer_send_weights(
            iter(tensors.items()), IPCTrainerSendWeightsArgs(send_mode=send)
        )
    line.receive()
    return True


def engine(folder, own, report):
    from torch_pair import connect

    report["updated"] = False
    llm, generate = start_engine(own, report)
    report["tokens_before"] = generate()
    llm.init_weight_transfer_engine({"init_info": {}})
    line = connect("second", folder + "/socket")
    seconds = []
    for key in ("tokens_after", "tokens_back"):
        begin = time.perf_counter()
        llm.start_weight_update(is_checkpoint_format=True)
        line.send(b"ready")
        try:
            llm.update_weights({"update_info": json.loads(line.receive())})
            llm.finish_weight_update()
        except Exception as failure:
            line.send(
                json.dumps(
                    {
                        "error": f"{type(failure).__name__}: {(str(failure) or '-').splitlines()[0][:300]}"
                    }
                ).encode()
            )
            raise
        seconds.append(round(time.perf_counter() - begin, 3))
        line.send(b"{}")
        report[key] = generate()
    report["update_s"] = seconds
    report["updated"] = True
    line.send(b"end")
    return True


def main():
    role = sys.argv[1]
    if role == "model":
        return make_model(*sys.argv[2:5])
    report = {"pid": os.getpid(), "uid": os.getuid(), "role": role}
    good = False
    try:
        if role == "reference":
            good = reference(sys.argv[2], report)
        elif role == "trainer":
            good = trainer(sys.argv[2], sys.argv[3], sys.argv[4], report)
        else:
            good = engine(sys.argv[2], sys.argv[3], report)
    except Exception as failure:
        report["error"] = f"{type(failure).__name__}: {(str(failure) or '-')[-400:]}"
    report["ok"] = good
    print("RESULT " + json.dumps(report), flush=True)
    os._exit(0 if good else 1)


if __name__ == "__main__":
    main()
