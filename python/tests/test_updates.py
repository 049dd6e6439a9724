# SPDX-License-Identifier: Apache-2.0
"""Live updates of weights: whole versions or nothing, whatever happens to the trainer."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading

import pytest

import gpushm
from gpushm import _core
from gpushm._shards import Box, Shard, decode_boxes, encode_boxes, pieces_of

from support import Broker, Child, wait_until

numpy = pytest.importorskip("numpy")

NAME = "w/policy"


def weights(value: float) -> dict[str, object]:
    return {
        "layer.weight": numpy.full((6, 4), value, "float32"),
        "layer.bias": numpy.full(6, value, "float32"),
        "step": numpy.full((), value, "float32"),
    }


def values(tensors: dict[str, object]) -> set[float]:
    return {float(each) for tensor in tensors.values() for each in numpy.asarray(tensor).ravel()}


def only(client: gpushm.Client, *numbers: int) -> bool:
    """What is not kept ends in later turns of the broker."""
    wait_until(
        lambda: [each.number for each in client.versions(NAME)] == list(numbers),
        f"the versions {numbers}",
    )
    return True


@pytest.fixture
def publisher(client: gpushm.Client) -> gpushm.WeightPublisher:
    return gpushm.WeightPublisher(NAME, device="host", client=client)


@pytest.fixture
def subscriber(client: gpushm.Client) -> gpushm.WeightSubscriber:
    return gpushm.WeightSubscriber(NAME, client=client)


# ---- parts of tensors ----


def random_grid(random_source: random.Random, shape: tuple[int, ...]) -> list[Box]:
    """Parts that cover a tensor, each element once."""
    boxes = [Box((), ())]
    for count in shape:
        cuts = sorted({0, count, *(random_source.randrange(count + 1) for _ in range(3))})
        ranges = list(itertools.pairwise(cuts))
        boxes = [
            Box((*box.start, begin), (*box.shape, end - begin))
            for box in boxes
            for begin, end in ranges
        ]
    random_source.shuffle(boxes)
    return boxes


@pytest.mark.parametrize("seed", range(30))
def test_random_layouts_are_made_of_others(seed: int) -> None:
    source = random.Random(seed)
    shape = tuple(source.randrange(1, 9) for _ in range(source.randrange(4)))
    whole = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape)

    def part(box: Box) -> object:
        return whole[tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))]

    sources = random_grid(source, shape)
    replicas = sources + source.choices(sources, k=3)
    source.shuffle(replicas)
    for target in random_grid(source, shape):
        made = numpy.full(target.shape, -1)
        for piece in pieces_of(target, replicas):
            assert (made[piece.target_index] == -1).all()
            made[piece.target_index] = part(replicas[piece.source])[piece.source_index]
        assert (made == part(target)).all()
    if len(sources) > 1:
        with pytest.raises(ValueError, match="are missing"):
            pieces_of(Box((0,) * len(shape), shape), sources[1:])


def test_parts_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parts overlap: \(3,\) at \(1,\), \(2,\) at \(0,\)"):
        pieces_of(Box((0,), (4,)), [Box((0,), (2,)), Box((1,), (3,))])


@pytest.mark.parametrize(
    ("shape", "start"), [((4, 3), (0, 0)), ((4,), (-1,)), ((4,), (2,)), ((2,), (0,)), ((), ())]
)
def test_shards_outside_their_tensor_are_refused(shape, start) -> None:
    with pytest.raises(ValueError, match="a part of shape"):
        Shard(numpy.zeros(3), shape, start)


def test_boxes_of_others_are_checked() -> None:
    good = encode_boxes({"a": Shard(numpy.zeros(3), [6], [3])})
    assert decode_boxes(good) == {"a": ((6,), (3,))}
    wrong = ["", "[]", "1", '{"a":1}', '{"a":[[1]]}', '{"a":[[1.0],[0]]}', '{"a":[[true],[0]]}']
    wrong += ['{"a":[1,[0]]}', '{"a":[[1],[0],[0]]}', "[" * 100_000, '{"a":[["1"],[0]]}']
    for text in wrong:
        with pytest.raises(ValueError, match=r"."):
            decode_boxes(text)


# ---- updates ----


def test_versions_are_applied_whole_and_once(client, publisher, subscriber) -> None:
    engine = weights(0)
    assert subscriber.poll() is None
    assert subscriber.apply(engine) is None
    assert subscriber.version is None
    assert publisher.update(weights(1)) == 1
    assert subscriber.poll() == 1
    assert subscriber.poll() == 1
    assert values(engine) == {0}
    assert subscriber.apply(engine) == 1
    assert (subscriber.version, publisher.version, values(engine)) == (1, 1, {1})
    assert subscriber.poll() is None
    assert subscriber.apply(engine) is None
    # Another engine's tensors.
    other = weights(0)
    assert subscriber.apply(other) == 1
    assert values(other) == {1}
    publisher.update(weights(2))
    publisher.update(weights(3))
    assert subscriber.apply(other) == 3
    assert values(other) == {3}
    assert only(client, 3)


def test_an_alias_goes_back(client, subscriber) -> None:
    publisher = gpushm.WeightPublisher(NAME, device="host", keep=2, client=client)
    prod = gpushm.WeightSubscriber(f"{NAME}@prod", client=client)
    engine = weights(0)
    publisher.update(weights(1))
    publisher.update(weights(2))
    assert prod.apply(engine) is None
    client.move_alias(NAME, "prod", 2)
    assert prod.apply(engine) == 2
    client.move_alias(NAME, "prod", 1)
    assert prod.apply(engine) == 1
    assert values(engine) == {1}
    assert subscriber.apply(engine) == 2
    client.withdraw_version(NAME, 2)
    assert subscriber.apply(engine) == 1


def test_an_update_that_fails_leaves_the_former_version(client, publisher, subscriber) -> None:
    engine = weights(0)
    publisher.update(weights(1))
    bad = weights(2)
    bad["layer.weight"] = numpy.zeros(3, ">f4")
    with pytest.raises(TypeError, match=r"layer\.weight"):
        publisher.update(bad)

    class Fails:
        """A tensor whose contents cannot be read when it is their turn."""

        shape = (3,)
        calls = 0

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: object) -> object:
            self.calls += 1
            if self.calls > 1:
                raise ValueError("gone")
            return numpy.zeros(3, "float32").__dlpack__(**options)

    bad["layer.weight"] = Fails()
    with pytest.raises(ValueError, match=r'"layer\.weight": gone'):
        publisher.update(bad)
    assert publisher.version == 1
    assert only(client, 1)
    assert subscriber.apply(engine) == 1
    assert publisher.update(weights(4)) > 1
    subscriber.apply(engine)
    assert values(engine) == {4}


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "layer.bias",
            "zeros(5, 'float32')",
            r'"layer.bias": the version has it with shape \(6,\)',
        ),
        ("layer.bias", "zeros(6, 'float64')", r'"layer.bias": the version has float32'),
        ("layer.other", "zeros(6, 'float32')", r'"layer.other": the version has no such tensor'),
        ("layer.bias", "zeros(6, 'float32').tolist()", "list is not a tensor"),
    ],
)
def test_what_does_not_fit_changes_nothing(publisher, subscriber, name, tensor, message) -> None:
    publisher.update(weights(1))
    engine = weights(0)
    engine[name] = eval(tensor, {"zeros": numpy.zeros})
    with pytest.raises((ValueError, TypeError), match=message):
        subscriber.apply(engine)
    del engine[name]
    assert values(engine) == {0}
    assert subscriber.version is None
    assert subscriber.apply(engine) == 1
    assert values(engine) == {1}


def test_elements_are_converted_on_request(client, publisher) -> None:
    publisher.update(weights(1))
    engine = {"layer.bias": numpy.zeros(6, "float16")}
    assert gpushm.WeightSubscriber(NAME, cast=True, client=client).apply(engine) == 1
    assert values(engine) == {1}


def test_wrong_arguments_are_refused(client, publisher, subscriber) -> None:
    with pytest.raises(ValueError, match="one of the parts"):
        gpushm.WeightPublisher(NAME, part="r2", parts=["r0", "r1"], client=client)
    with pytest.raises(ValueError, match="never changes"):
        gpushm.WeightSubscriber(f"{NAME}@7", client=client)
    with pytest.raises(ValueError, match="in parts"):
        gpushm.WeightSubscriber(f"{NAME}@prod/r0", client=client)
    with pytest.raises(ValueError, match="mode is"):
        gpushm.WeightSubscriber(NAME, mode="move", client=client)
    with pytest.raises(ValueError, match="does not convert"):
        gpushm.WeightSubscriber(NAME, mode="swap", cast=True, client=client)
    for wrong in ([1], {1: numpy.zeros(3)}, {"__metadata__": numpy.zeros(3)}):
        with pytest.raises(TypeError):
            publisher.update(wrong)
    with pytest.raises(ValueError, match="no tensors"):
        publisher.update({})
    publisher.update(weights(1))
    with pytest.raises(ValueError, match="no tensors"):
        subscriber.apply({})
    with pytest.raises(gpushm.InvalidArgumentError, match="published"):
        publisher.abandon(1)
    publisher.abandon(9)
    swap = gpushm.WeightSubscriber(NAME, mode="swap", client=client)
    with pytest.raises(TypeError, match="PyTorch"):
        swap.apply(weights(0))


# ---- ranks ----


def test_a_layout_of_training_becomes_one_of_inference(client) -> None:
    """Three trainers have rows, two engines columns, and one tensor is in all trainers."""
    whole = numpy.arange(60, dtype="float32").reshape(10, 6)
    parts = ["r0", "r1", "r2"]
    rows = [(0, 4), (4, 7), (7, 10)]
    ranks = [
        gpushm.WeightPublisher(NAME, part=part, parts=parts, device="host", client=client)
        for part in parts
    ]
    number = ranks[0].begin()
    for rank, (begin, end) in zip(ranks, rows, strict=True):
        assert client.versions(NAME)[0].state == "building"
        part = Shard(whole[begin:end], whole.shape, (begin, 0))
        rank.update({"w": part, "norm": numpy.ones(4)}, number=number)
    engines = [
        {
            "w": Shard(numpy.zeros((10, 3), "float32"), whole.shape, (0, 3 * i)),
            "norm": numpy.zeros(4),
        }
        for i in range(2)
    ]
    subscribers = [gpushm.WeightSubscriber(NAME, parts=parts, client=client) for _ in engines]
    agreed = subscribers[0].poll()
    for subscriber, engine in zip(subscribers, engines, strict=True):
        assert subscriber.apply(engine, number=agreed) == agreed
        assert subscriber.apply(engine, number=agreed) is None
    assert (engines[0]["w"].tensor == whole[:, :3]).all()
    assert (engines[1]["w"].tensor == whole[:, 3:]).all()
    assert (engines[1]["norm"] == 1).all()
    fused = numpy.zeros((10, 8), "float32")
    target = {"w": Shard(fused[2:8, 1:7], whole.shape, (2, 0))}
    gpushm.WeightSubscriber(NAME, parts=parts, client=client).apply(target)
    assert (fused[2:8, 1:7] == whole[2:8]).all()
    assert fused.sum() == whole[2:8].sum()


def test_a_rank_that_fails_ends_the_version(client) -> None:
    parts = ["r0", "r1"]
    ranks = [
        gpushm.WeightPublisher(NAME, part=part, parts=parts, device="host", client=client)
        for part in parts
    ]
    number = ranks[0].begin()
    ranks[0].update(weights(1), number=number)
    with pytest.raises(TypeError):
        ranks[1].update({"w": object()}, number=number)
    assert only(client)
    with pytest.raises(gpushm.Error):
        ranks[1].update(weights(1), number=number)
    number = ranks[1].begin()
    ranks[1].update(weights(2), number=number)
    ranks[0].update(weights(2), number=number)
    engine = weights(0)
    assert gpushm.WeightSubscriber(NAME, parts=parts, client=client).apply(engine) == number


def test_the_version_of_a_poll_is_there_for_all_ranks(client, publisher) -> None:
    first, second, late = (gpushm.WeightSubscriber(NAME, client=client) for _ in range(3))
    publisher.update(weights(1))
    agreed = first.poll()
    assert second.poll(agreed) == agreed
    for value in (2, 3):
        publisher.update(weights(value))
    engines = weights(0), weights(0), weights(0)
    assert first.apply(engines[0], number=agreed) == 1
    assert second.apply(engines[1], number=agreed) == 1
    assert second.poll(3) == 3
    with pytest.raises(gpushm.NoSuchSegmentError):
        late.apply(engines[2], number=agreed)
    assert values(engines[2]) == {0}
    assert late.apply(engines[2]) == 3


def hostile(client: gpushm.Client, shards: str) -> None:
    entries = {
        "__metadata__": {"gpushm.shards": shards},
        "layer.bias": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]},
    }
    table = json.dumps(entries)
    number = client.create_version(NAME)
    path = f"{NAME}@{number}"
    with client.create(
        path, _core.tensors_size(table), device="host", lifetime="persistent"
    ) as made:
        made.publish_tensors(table)


@pytest.mark.parametrize(
    "shards",
    [
        "nonsense",
        '{"layer.bias":[[5],[0]]}',
        '{"layer.bias":[[6],[1]]}',
        '{"x":[[6],[0]]}',
        "[" * 5000,
    ],
)
def test_hostile_parts_are_refused(client, subscriber, shards) -> None:
    hostile(client, shards)
    engine = {"layer.bias": numpy.ones(6, "float32")}
    with pytest.raises(gpushm.ProtocolError):
        subscriber.apply(engine)
    assert values(engine) == {1}


def test_a_segment_without_tensors_is_refused(client, subscriber) -> None:
    number = client.create_version(NAME)
    with client.create(f"{NAME}@{number}", 64, device="host", lifetime="persistent") as made:
        made.publish()
    with pytest.raises(gpushm.InvalidArgumentError):
        subscriber.apply(weights(0))


# ---- several processes ----


def test_waits_end_with_a_publication(client, broker, subscriber) -> None:
    assert subscriber.wait(timeout=0) is False
    assert subscriber.wait(timeout=0.01) is False
    with gpushm.connect(broker.socket) as other:
        publisher = gpushm.WeightPublisher(NAME, device="host", client=other)
        waiting = threading.Event()

        def publish() -> None:
            waiting.wait()
            publisher.update(weights(1))

        thread = threading.Thread(target=publish)
        thread.start()
        waiting.set()
        assert subscriber.wait(timeout=60)
        thread.join()
    assert subscriber.poll() == 1
    stop = gpushm.Stop()
    stop.request()
    subscriber.apply(weights(0))
    with pytest.raises(gpushm.CancelledError):
        subscriber.wait(timeout=60, stop=stop)
    subscriber.close()
    subscriber.close()


TRAINER = """
import sys, numpy, gpushm
client = gpushm.connect(sys.argv[1], timeout=30)
publisher = gpushm.WeightPublisher("w/policy", device="host", client=client)
while True:
    versions = [each.number for each in client.versions("w/policy")]
    value = max(versions, default=0) + 1
    tensors = {str(i): numpy.full(20_000, value, "float32") for i in range(8)}
    print(publisher.update(tensors), flush=True)
"""


def test_engines_see_whole_versions_while_trainers_die(client, start, broker) -> None:
    """All tensors of an engine are of one version at any time; nothing is left of the others."""
    engine = {str(i): numpy.zeros(20_000, "float32") for i in range(8)}
    applied = []
    source = random.Random(7)
    with gpushm.connect(broker.socket) as cached:
        subscriber = gpushm.WeightSubscriber(NAME, client=cached)
        for _ in range(6):
            trainer: Child = start(TRAINER)
            first = len(applied)
            trainer.line()
            rounds = source.randrange(3, 12)
            while len(applied) < first + rounds:
                assert subscriber.wait(timeout=60)
                number = subscriber.apply(engine)
                assert len(values(engine)) == 1
                applied.append(number)
            trainer.kill()
        assert applied == sorted(set(applied))
        subscriber.close()
    with client.subscribe(NAME) as events:
        while len(client.list(NAME)) > 1:  # the dead trainer's
            events.next(timeout=0.05)
    assert only(client, client.resolve_version(NAME))


def test_nothing_is_left_of_many_updates(client, broker) -> None:
    with gpushm.connect(broker.socket) as cached:
        publisher = gpushm.WeightPublisher(NAME, device="host", client=cached)
        subscriber = gpushm.WeightSubscriber(NAME, client=client)
        engine = weights(0)
        before = 0
        for i in range(200):
            publisher.update(weights(i))
            assert subscriber.apply(engine) == i + 1
            if i == 20:
                before = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= before
        assert only(client, 200)
        assert len(client.list(NAME)) == 1


def test_a_broker_that_dies_is_followed_by_another(spawn) -> None:
    broker = Broker()
    with gpushm.connect(broker.socket) as client:
        publisher = gpushm.WeightPublisher(NAME, device="host", client=client)
        subscriber = gpushm.WeightSubscriber(NAME, client=client)
        engine = weights(0)
        publisher.update(weights(1))
        subscriber.apply(engine)
        assert subscriber.wait(timeout=0) is False
        broker.kill()
        broker.start()
        # Of the same number, and another version.
        assert publisher.update(weights(2)) == 1
        assert subscriber.wait(timeout=60)
        assert subscriber.apply(engine, number=1) == 1
        assert values(engine) == {2}
        subscriber.close()
    broker.stop()


def test_connections_of_their_own(broker, monkeypatch) -> None:
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    engine = weights(0)
    with (
        gpushm.WeightPublisher(NAME, device="host") as publisher,
        gpushm.WeightSubscriber(NAME) as subscriber,
    ):
        publisher.update(weights(1))
        assert subscriber.apply(engine) == 1
        assert repr(publisher) == '<gpushm.WeightPublisher of "w/policy", version 1>'
        assert repr(subscriber) == '<gpushm.WeightSubscriber of "w/policy@latest", version 1>'
    assert values(engine) == {1}


# ---- PyTorch ----


def test_modules_are_updated_by_copies(client, publisher, subscriber) -> None:
    torch = pytest.importorskip("torch")
    trainer, engine = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
    publisher.update(trainer)
    before = engine.weight.data_ptr()
    assert subscriber.apply(engine) == 1
    assert engine.weight.data_ptr() == before
    assert torch.equal(engine.weight, trainer.weight)
    assert torch.equal(engine.bias, trainer.bias)
    assert engine.weight.requires_grad
    with torch.inference_mode():
        made = {"weight": torch.zeros(6, 4)}
    assert subscriber.apply(made) == 1
    assert torch.equal(made["weight"], trainer.weight)
    half = torch.nn.Linear(4, 6).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"float32, and the engine torch\.bfloat16"):
        subscriber.apply(half)
    assert gpushm.WeightSubscriber(NAME, cast=True, client=client).apply(half) == 1
    assert torch.equal(half.weight, trainer.weight.to(torch.bfloat16))


def test_parts_of_parameters_are_updated(client, publisher, subscriber) -> None:
    torch = pytest.importorskip("torch")
    fused = torch.nn.Parameter(torch.zeros(8, 4))
    publisher.update({"q": torch.ones(4, 4), "k": 2 * torch.ones(6, 4)})
    part = Shard(fused[4:8], (6, 4), (1, 0))
    assert subscriber.apply({"q": fused[:4], "k": part}) == 1
    assert (fused[:4] == 1).all()
    assert (fused[4:] == 2).all()
    assert fused.is_leaf
    fused.sum().backward()
    assert (fused.grad == 1).all()
    transposed = torch.zeros(4, 4).T
    assert subscriber.apply({"q": transposed}) == 1
    assert (transposed == 1).all()


def test_modules_are_pointed_at_a_version(client, publisher) -> None:
    torch = pytest.importorskip("torch")
    trainer, engine = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
    subscriber = gpushm.WeightSubscriber(NAME, mode="swap", client=client)
    publisher.update(trainer)
    parameter = engine.weight
    assert subscriber.apply(engine) == 1
    assert engine.weight is parameter
    assert torch.equal(engine.weight, trainer.weight)
    first = engine.weight.data_ptr()
    with torch.no_grad():
        trainer.weight.fill_(3)
    publisher.update(trainer)
    # The engine's version is still there.
    assert only(client, 2, 1)
    assert engine.weight.max() < 3
    assert subscriber.apply(engine) == 2
    assert engine.weight.data_ptr() != first
    assert (engine.weight == 3).all()
    assert only(client, 2)
    subscriber.close()
    assert (engine.weight == 3).all()


@pytest.mark.parametrize("mode", ["swap", "remap"])
def test_views_are_not_pointed_elsewhere(client, publisher, mode) -> None:
    """Their memory is another tensor's, which would stay as it is."""
    torch = pytest.importorskip("torch")
    subscriber = gpushm.WeightSubscriber(NAME, mode=mode, client=client)
    publisher.update({"w": torch.ones(4)})
    fused = torch.zeros(8)
    with torch.inference_mode():
        other = torch.zeros(8)
        views = [fused[:4], other[:4], Shard(fused[4:], (4,), (0,))]
    for each in views[1:]:
        with pytest.raises(TypeError, match=r'"w": a view of another tensor'):
            subscriber.apply({"w": each})
    with pytest.raises(TypeError, match=r'"w": a view of another tensor'):
        subscriber.apply({"w": torch.nn.Parameter(fused)[:4]})
    assert fused.sum() == 0
    assert subscriber.version is None


def test_versions_are_mapped_at_the_same_addresses(client) -> None:
    torch = pytest.importorskip("torch")
    parts = ["r0", "r1"]
    ranks = [
        gpushm.WeightPublisher(NAME, part=part, parts=parts, device="host", client=client)
        for part in parts
    ]
    engine = {"a": torch.zeros(3), "b": torch.zeros(5)}
    subscriber = gpushm.WeightSubscriber(NAME, parts=parts, mode="remap", client=client)

    def publish(value: float, b_size: int = 5) -> int:
        number = ranks[0].begin()
        ranks[0].update({"a": torch.full((3,), float(value))}, number=number)
        ranks[1].update({"b": torch.full((b_size,), float(value))}, number=number)
        return number

    addresses = set()
    for value in range(1, 6):
        assert subscriber.apply(engine) is None
        number = publish(value)
        assert subscriber.apply(engine) == number
        assert (engine["a"] == value).all()
        assert (engine["b"] == value).all()
        addresses.add((engine["a"].data_ptr(), engine["b"].data_ptr()))
        assert only(client, number)
    assert len(addresses) == 1
    # Other tensors of the engine, at the same addresses; a part that does not fit changes nothing.
    other = {"b": torch.zeros(5)}
    assert subscriber.apply(other) == number
    assert other["b"].data_ptr() == engine["b"].data_ptr()
    publish(9, b_size=6)
    with pytest.raises(ValueError, match="r1 has other tensors, or other places"):
        subscriber.apply(engine)
    assert (engine["a"] == 5).all()
    assert (engine["b"] == 5).all()
    subscriber.close()
    assert (engine["b"] == 5).all()


def test_a_version_that_cannot_be_mapped_leaves_the_former_one(client) -> None:
    """The first part is mapped, the second cannot be: its memory has other chunks."""
    torch = pytest.importorskip("torch")
    parts = ["r0", "r1"]
    engine = {"r0": torch.zeros(3000), "r1": torch.zeros(3000)}
    subscriber = gpushm.WeightSubscriber(NAME, parts=parts, mode="remap", client=client)

    def publish(value: float, chunk_size: int) -> None:
        number = client.create_version(NAME, parts)
        for part in parts:
            offsets = {"data_offsets": [0, 12_000]}
            table = json.dumps({part: {"dtype": "F32", "shape": [3000]} | offsets})
            with client.create(
                f"{NAME}@{number}/{part}",
                _core.tensors_size(table),
                device="host",
                lifetime="persistent",
                chunk_size=chunk_size if part == "r1" else 0,
            ) as made:
                made.view("float32", [3000]).copy_from(torch.full((3000,), float(value)))
                made.publish_tensors(table)

    publish(1, 0)
    assert subscriber.apply(engine) == 1
    publish(2, 4096)
    with pytest.raises(gpushm.SizeMismatchError, match="chunks"):
        subscriber.apply(engine)
    assert subscriber.version is None
    assert (engine["r0"] == 1).all()
    assert (engine["r1"] == 1).all()
    publish(3, 0)
    assert subscriber.apply(engine) == 3
    assert (engine["r0"] == 3).all()
    assert (engine["r1"] == 3).all()


def test_tied_tensors_stay_tied(client, publisher) -> None:
    torch = pytest.importorskip("torch")
    trainer = {"a": torch.ones(3), "b": torch.zeros(3)}
    tied = torch.zeros(3)
    engine = {"a": tied, "b": tied}
    subscriber = gpushm.WeightSubscriber(NAME, mode="swap", client=client)
    publisher.update(trainer)
    with pytest.raises(ValueError, match="a and b are one tensor of the engine"):
        subscriber.apply(engine)
    assert (tied == 0).all()
    trainer["b"] = trainer["a"]
    publisher.update(trainer)
    assert subscriber.apply(engine) == 2
    assert (tied == 1).all()


RANK = """
import sys, torch, torch.distributed as dist, gpushm
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
socket, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2))
whole = torch.arange(70, dtype=torch.float32).reshape(10, 7)
model = {
    "rows": distribute_tensor(whole, mesh, [Shard(0), Replicate()]),
    "both": distribute_tensor(whole, mesh, [Shard(1), Shard(0)]),
    "one": distribute_tensor(whole, mesh, [Shard(0), Shard(0)]),  # uneven: 3, 2, 3, 2 rows
    "all": distribute_tensor(whole, mesh, [Replicate(), Replicate()]),
}
publisher = gpushm.WeightPublisher(
    "w/policy", part=f"r{rank}", parts=[f"r{i}" for i in range(4)], device="host",
    client=gpushm.connect(socket),
)
number = [publisher.begin() if rank == 0 else 0]
dist.broadcast_object_list(number)
try:
    partial = DTensor.from_local(torch.zeros(2), mesh, [Replicate(), dist.tensor.Partial()])
    publisher.update({"sum": partial})
except TypeError as error:
    print(error, flush=True)
publisher.update(model, number=number[0])
print("published", flush=True)
sys.stdin.readline()
"""


def test_tensors_of_a_device_mesh_are_put_together(client, start, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed.tensor")
    ranks = [start(RANK, str(tmp_path / "store"), str(rank)) for rank in range(4)]
    for each in ranks:
        assert "a DTensor with the placement P" in each.line()
        assert each.line() == "published"
    engine = {name: torch.zeros(10, 7) for name in ("rows", "both", "one", "all")}
    subscriber = gpushm.WeightSubscriber(NAME, parts=[f"r{i}" for i in range(4)], client=client)
    assert subscriber.apply(engine) == 1
    for tensor in engine.values():
        assert torch.equal(tensor, torch.arange(70, dtype=torch.float32).reshape(10, 7))
