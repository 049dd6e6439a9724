# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's libraries in a segment."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
import types

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import gpushm
import gpushm._core

WEIGHTS = {"embed": np.ones((4, 8), "float32"), "norm": np.arange(8, dtype="float16")}


@pytest.fixture
def model(tmp_path):
    """Two files with an index, and another model in a file."""
    folder = tmp_path / "llama"
    folder.mkdir()
    files = {
        "embed": "model-00001-of-00002.safetensors",
        "norm": "model-00002-of-00002.safetensors",
    }
    for name, file in files.items():
        safetensors.numpy.save_file({name: WEIGHTS[name]}, folder / file, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    safetensors.numpy.save_file({"lora": np.zeros(2)}, tmp_path / "adapter_model.safetensors")
    return folder


def is_shared(array):
    address = array.__array_interface__["data"][0]
    return gpushm._core.find_memory(address, array.nbytes) is not None


def test_files_are_opened_as_the_segment(client, model, caplog):
    original = safetensors.safe_open
    importer = types.ModuleType("importer")
    importer.opener = original  # as `from safetensors import safe_open as opener`
    sys.modules["importer"] = importer
    try:
        with gpushm.shared_weights("w/llama", device="host", client=client):
            assert importer.opener is not original
            parts = {}
            for file in sorted(model.glob("*.safetensors")):
                with importer.opener(file, framework="np", device="cpu") as opened:
                    assert opened.metadata() == {"format": "pt"}
                    (key,) = opened.keys()  # of this file
                    parts[key] = opened.get_slice(key)
            got = {key: each[...] for key, each in parts.items()}
            loaded = safetensors.numpy.load_file(model / "model-00001-of-00002.safetensors")
            other = safetensors.numpy.load_file(model.parent / "adapter_model.safetensors")
            late = types.ModuleType("late")
            late.opener = safetensors.safe_open
            sys.modules["late"] = late
        assert importer.opener is late.opener is safetensors.safe_open is original
        assert safetensors.numpy.safe_open is original
    finally:
        sys.modules.pop("importer", None)
        sys.modules.pop("late", None)
    for name, array in got.items():
        assert np.array_equal(array, WEIGHTS[name])
        assert is_shared(array)
        assert not array.flags.writeable
    assert list(loaded) == ["embed"]
    assert is_shared(loaded["embed"])
    assert not is_shared(other["lora"])
    assert 'is not opened as "w/llama", which has another model' in caplog.text
    assert [each.name for each in client.list("w/")] == ["w/llama"]


def test_an_exception_ends_the_replacement(client, model):
    original = safetensors.safe_open
    with pytest.raises(KeyError):
        with gpushm.shared_weights("w/llama", device="host", client=client):
            raise KeyError
    with pytest.raises(FileNotFoundError):
        with gpushm.shared_weights("w/llama", device="host", client=client):
            safetensors.safe_open(model / "none.safetensors", "np")
    assert safetensors.safe_open is safetensors.numpy.safe_open is original


def test_other_threads_are_not_affected(client, model):
    file = model / "model-00001-of-00002.safetensors"
    inside, outside = threading.Event(), threading.Event()
    result = {}

    def load():
        assert inside.wait(20)
        result["plain"] = safetensors.numpy.load_file(file)["embed"]
        with gpushm.shared_weights("w/second", device="host", client=client):
            result["own"] = safetensors.numpy.load_file(file)["embed"]
            outside.set()

    thread = threading.Thread(target=load)
    thread.start()
    original = safetensors.safe_open
    with gpushm.shared_weights("w/first", device="host", client=client):
        inside.set()
        assert outside.wait(20)
        mine = safetensors.numpy.load_file(file)["embed"]
    thread.join()
    assert not is_shared(result["plain"])
    assert is_shared(result["own"])
    assert is_shared(mine)
    assert {each.name for each in client.list("w/")} == {"w/first", "w/second"}
    assert safetensors.safe_open is original


@pytest.fixture
def library(monkeypatch):
    """Modules with the names of transformers, and its function that allocates memory for a model."""
    package = types.ModuleType("transformers")
    module = types.ModuleType("transformers.modeling_utils")
    calls = []
    module.caching_allocator_warmup = calls.append
    for name in [each for each in sys.modules if each.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", module)
    return module, calls


def test_libraries_allocate_no_memory_for_parameters_of_a_segment(client, library):
    module, calls = library
    own = module.caching_allocator_warmup
    with gpushm.shared_weights("w/llama", device="host", client=client):
        module.caching_allocator_warmup("model")
        with gpushm.shared_weights("w/other", device="host", client=client):
            module.caching_allocator_warmup("other")
        other = threading.Thread(
            target=lambda: module.caching_allocator_warmup("of another thread")
        )
        other.start()
        other.join()
    assert calls == ["of another thread"]
    assert module.caching_allocator_warmup is own


def test_cache_of_pytorch_is_emptied_after_an_import_in_the_statement(client, library, monkeypatch):
    module, _ = library
    emptied = []
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: emptied.append(1)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with gpushm.shared_weights("w/llama", device="host", client=client):
        pass
    assert emptied == []
    monkeypatch.delitem(sys.modules, "transformers")
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils")
    with gpushm.shared_weights("w/llama", device="host", client=client):
        sys.modules["transformers.modeling_utils"] = module
    assert emptied == [1]


def test_components_of_a_pipeline_have_names_of_their_own(client, tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    for part in ("unet", "vae"):
        (tmp_path / part).mkdir()
        file = tmp_path / part / "diffusion_pytorch_model.safetensors"
        safetensors.numpy.save_file({part: np.ones(4)}, file)
    with gpushm.shared_weights("w/sd", device="host", client=client):
        for part in ("unet", "vae"):
            file = tmp_path / part / "diffusion_pytorch_model.safetensors"
            assert is_shared(safetensors.numpy.load_file(file)[part])
    assert [each.name for each in client.list("w/")] == ["w/sd/unet", "w/sd/vae"]


# ---- PyTorch ----


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def weight(client, torch):
    from gpushm._torch_read_only import ReadOnlyTensor

    client.put("w", {"a": torch.arange(12.0).reshape(3, 4)}, device="host")
    return torch.nn.Parameter(ReadOnlyTensor.of(client.get("w", "torch")["a"]))


WRITES = {
    "add_": lambda torch, w: w.add_(1),
    "data": lambda torch, w: w.data.add_(1),
    "detach": lambda torch, w: w.detach().zero_(),
    "view": lambda torch, w: w.view(-1).fill_(1),
    "row": lambda torch, w: w[0].copy_(w[1]),
    "item": lambda torch, w: w.__setitem__(0, 1),
    "out": lambda torch, w: torch.add(w, 1, out=w),
    "init": lambda torch, w: torch.nn.init.normal_(w),
    "foreach": lambda torch, w: torch._foreach_add_([w], 1),
    "transpose": lambda torch, w: w.t()[0].mul_(2),
    "split": lambda torch, w: w.split(2)[0].zero_(),
    "unbind": lambda torch, w: w.unbind()[1].zero_(),
    "renorm": lambda torch, w: torch.nn.functional.embedding(torch.tensor([1]), w, max_norm=0.1),
    "relu": lambda torch, w: torch.nn.functional.relu(w, inplace=True),
    "resize": lambda torch, w: w.resize_(1, 1),
    "numpy": lambda torch, w: w.detach().numpy().__setitem__(0, 1),
    "asarray": lambda torch, w: np.asarray(w.detach()).__setitem__(0, 1),
    "dlpack": lambda torch, w: np.from_dlpack(w.detach()).__setitem__(0, 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_an_exception(torch, weight, write):
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError, BufferError)):
        WRITES[write](torch, weight)
    assert weight.tolist() == np.arange(12.0).reshape(3, 4).tolist()


def optimizers(torch, parameters):
    yield torch.optim.SGD(parameters, lr=0.1)
    yield torch.optim.SGD(parameters, lr=0.1, foreach=True)
    yield torch.optim.AdamW(parameters)
    yield torch.optim.AdamW(parameters, fused=True)


def test_a_step_of_an_optimizer_is_an_exception(torch, weight):
    (torch.ones(2, 4) @ weight.t()).square().sum().backward()
    assert weight.grad is not None
    for optimizer in optimizers(torch, [weight]):
        with pytest.raises(RuntimeError, match="make_private"):
            optimizer.step()
    assert weight.tolist() == np.arange(12.0).reshape(3, 4).tolist()


def test_copies_are_plain_and_private(torch, weight):
    module = torch.nn.Module()
    module.w = weight
    expected = np.arange(12.0).reshape(3, 4).tolist()
    copies = [
        copy.deepcopy(module).w, pickle.loads(pickle.dumps(weight)), weight.clone(), weight + 0,
        weight.to(torch.float64),
    ]  # fmt: skip
    with torch.no_grad():
        for each in copies:
            assert type(each) in (torch.Tensor, torch.nn.Parameter)
            assert each.tolist() == expected
            each.add_(1)
    assert gpushm.make_private(module) == 1
    with torch.no_grad():
        module.w.add_(1)
    assert weight.tolist() == expected
    again = torch.nn.Module()
    again.w = weight
    again.to(torch.bfloat16)
    with torch.no_grad():
        again.w.add_(1)
    assert again.w.tolist() == (np.arange(12.0) + 1).reshape(3, 4).tolist()


# ---- transformers ----


@pytest.fixture
def llama(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 500}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return transformers, tmp_path


@pytest.mark.filterwarnings("ignore")
def test_from_pretrained_shares_all_parameters_of_a_model(client, torch, llama):
    transformers, folder = llama
    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = load(folder)
    with gpushm.shared_weights("w/llama", device="cpu", client=client):
        shared = load(folder)
    with gpushm.shared_weights("w/llama", device="cpu", client=client):
        again = load(folder)
    assert transformers.modeling_utils.safe_open is safetensors.safe_open
    for model in (shared, again):
        for name, each in model.named_parameters():
            assert gpushm._core.find_memory(each.data_ptr(), each.nbytes) is not None, name
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(shared(tokens).logits, plain(tokens).logits)
    shared.train()
    shared(tokens, labels=tokens).loss.backward()
    with pytest.raises(RuntimeError, match="mapped for reading only"):
        torch.optim.AdamW(shared.parameters()).step()
    assert torch.equal(shared.lm_head.weight, plain.lm_head.weight)
    gpushm.make_private(shared)
    shared(tokens, labels=tokens).loss.backward()
    torch.optim.SGD(shared.parameters(), lr=1.0).step()
    assert not torch.equal(shared.lm_head.weight, plain.lm_head.weight)
    with gpushm.shared_weights("w/llama", device="cpu", client=client, read_only=False):
        assert type(load(folder).lm_head.weight) is torch.nn.Parameter


def shared_parameters(model):
    """How many, of all."""
    every = list(model.parameters())
    shared = [
        each for each in every if gpushm._core.find_memory(each.data_ptr(), each.nbytes) is not None
    ]
    return len(shared), len(every)


@pytest.mark.filterwarnings("ignore")
def test_a_second_process_has_the_same_memory(client, start, torch, llama):
    """What that costs: bench/python/second_process.py."""
    transformers, folder = llama
    with gpushm.shared_weights("w/llama", device="cpu", client=client):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.sum()
    child = start(
        """
        import sys, warnings
        warnings.simplefilter("ignore")
        import gpushm, torch, transformers
        transformers.utils.logging.disable_progress_bar()
        client = gpushm.connect(sys.argv[1])
        with gpushm.shared_weights("w/llama", device="cpu", client=client):
            model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2])
        print(model.lm_head.weight.double().sum().item(), flush=True)
        all_shared = all(
            gpushm._core.find_memory(each.data_ptr(), each.nbytes) for each in model.parameters()
        )
        print(all_shared, flush=True)
        """,
        str(folder),
    )
    assert float(child.line()) == model.lm_head.weight.double().sum().item()
    assert child.line() == "True"
    child.succeed()


# ---- accelerate ----


@pytest.fixture
def accelerate(llama):
    return pytest.importorskip("accelerate")


@pytest.mark.filterwarnings("ignore")
def test_a_class_of_parameters_makes_parameters(torch, weight):
    """As accelerate uses it."""
    kind = type(weight)
    private = kind(torch.zeros(2), requires_grad=False)
    assert type(private) is torch.nn.Parameter
    assert not private.requires_grad
    assert kind(weight.detach()).requires_grad
    with torch.no_grad(), pytest.raises(RuntimeError, match="mapped for reading only"):
        kind(weight.detach()).add_(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device_map", [{"": "cpu"}, "auto"], ids=str)
def test_checkpoints_are_dispatched(client, torch, llama, accelerate, device_map):
    transformers, folder = llama
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with accelerate.init_empty_weights():
        empty = transformers.LlamaForCausalLM(plain.config)
    device_map = device_map if torch.cuda.device_count() == 0 else {"": "cpu"}
    with gpushm.shared_weights("w/llama", device="cpu", client=client):
        model = accelerate.load_checkpoint_and_dispatch(empty, str(folder), device_map=device_map)
    shared, every = shared_parameters(model)
    assert shared == every > 10
    tokens = torch.arange(10)[None]
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    model(tokens, labels=tokens).loss.backward()
    with pytest.raises(RuntimeError, match="make_private"):
        torch.optim.SGD(model.parameters(), lr=1.0).step()


@pytest.mark.filterwarnings("ignore")
def test_offloaded_parameters_are_private(client, torch, llama, accelerate):
    transformers, folder = llama
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with gpushm.shared_weights("w/llama", device="cpu", client=client):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prepared = accelerate.Accelerator(cpu=True).prepare(model)
    shared, every = shared_parameters(prepared)
    assert shared == every > 10
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    tokens = torch.arange(10)[None]
    assert torch.equal(offloaded(tokens).logits, plain(tokens).logits)


# ---- diffusers ----


@pytest.mark.filterwarnings("ignore")
def test_pipelines_of_diffusers_share_all_parameters(client, torch, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    unet = diffusers.UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=10)
    diffusers.DDPMPipeline(unet, scheduler).save_pretrained(tmp_path)

    def images(pipeline):
        pipeline.set_progress_bar_config(disable=True)
        seed = torch.Generator().manual_seed(0)
        return pipeline(generator=seed, num_inference_steps=2, output_type="np").images

    expected = images(diffusers.DDPMPipeline.from_pretrained(tmp_path))
    with gpushm.shared_weights("w/ddpm", device="cpu", client=client):
        pipeline = diffusers.DDPMPipeline.from_pretrained(tmp_path)
        model = diffusers.UNet2DModel.from_pretrained(tmp_path / "unet")
    assert "w/ddpm/unet" in [each.name for each in client.list("w/")]
    for each in (pipeline.unet, model):
        shared, every = shared_parameters(each)
        assert shared == every > 10
        with torch.no_grad(), pytest.raises(RuntimeError, match="make_private"):
            each.conv_in.weight.add_(1)
    assert np.array_equal(images(pipeline), expected)
