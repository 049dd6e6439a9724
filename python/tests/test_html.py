# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: tables of HTML, parsed."""

from __future__ import annotations

import html.parser

import numpy as np
import pytest

import gpushm

# A name may contain these.
NAME = 'w/<b>&"one"'


class Parser(html.parser.HTMLParser):
    """The rows of the tables, and the text behind them. Refuses what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.rest = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "tr", "th", "td", "p")
        assert not attributes
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        elif data.strip():
            self.rest += data


def shown(item):
    assert "\n" not in repr(item)
    return dict(Parser(item._repr_html_()).rows)


def test_a_segment_and_its_array_are_shown_as_tables(client):
    segment = client.create(NAME, 3 << 19, device="host")
    assert shown(segment) == {
        "gpushm.Segment": "",
        "name": NAME,
        "size": "1.5 MiB (1572864 bytes)",
        "device": "host",
        "access": "read-write",
        "state": "live",
        "lifetime": "leased",
        "backend": "host",
    }
    array = segment.view("bfloat16", (4, 8))
    expected = {
        "gpushm.Array": "",
        "segment": NAME,
        "shape": "(4, 8)",
        "dtype": "bfloat16",
        "device": "host",
        "size": "64 bytes",
        "access": "read-write",
        "state": "live",
    }
    assert shown(array) == expected
    segment.publish()
    assert shown(client.open(NAME).view("bfloat16", (4, 8))) == expected | {"access": "read"}
    client.remove(NAME)
    assert shown(array)["state"] == "removed"
    segment.close()
    assert shown(segment) == {"gpushm.Segment": "", "state": "closed"}
    assert shown(array) == expected | {"state": "removed"}


@pytest.mark.parametrize(
    ("size", "text"),
    [(1, "1 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1 << 20, "1 MiB"),
     ((1 << 30) + 1, "1 GiB (1073741825 bytes)"), (5 << 39, "2.5 TiB (2748779069440 bytes)")],
)  # fmt: skip
def test_sizes_are_shown_in_binary_units(size, text):
    from gpushm import _html

    assert _html._bytes(size) == text


def test_memory_of_another_library_is_shown_as_a_table():
    rows = shown(gpushm.from_dlpack(np.zeros((2, 3))))
    assert rows == {
        "gpushm.Array": "",
        "shape": "(2, 3)",
        "dtype": "float64",
        "device": "host",
        "size": "48 bytes",
        "access": "read-write",
    }


def test_segments_of_a_list_are_shown_with_state_and_leases(client):
    with client.create(NAME, 4096, device="host") as segment:
        (info,) = client.list()
        assert shown(info)["state"] == "live, not published"
        segment.publish()
        (info,) = client.list()
        rows = shown(info)
        assert (rows["name"], rows["state"], rows["leases"]) == (NAME, "live", "1")


def test_the_first_50_tensors_of_a_model_are_shown(client):
    client.put("w", {f"<{i}>": np.zeros((i, 2), "float16") for i in range(53)}, device="host")
    with gpushm.safe_open("w", "numpy", client=client) as opened:
        assert "\n" not in repr(opened)
        parsed = Parser(opened._repr_html_())
    assert ["name", "w"] in parsed.rows
    place = parsed.rows.index(["tensor", "dtype", "shape"])
    assert len(parsed.rows) - place == 51
    assert parsed.rows[place + 2] == ["<1>", "float16", "(1, 2)"]
    assert parsed.rest.strip() == "and 3 more tensors"
    assert shown(opened) == {"gpushm.Segment": "", "state": "closed"}


def test_read_only_tensors_are_shown_as_tables(client):
    torch = pytest.importorskip("torch")
    from gpushm._torch_read_only import ReadOnlyTensor

    client.put("w", {"a": np.zeros((3, 4), "float32")}, device="host")
    weight = ReadOnlyTensor.of(client.get("w", "torch")["a"])
    for each in (weight, torch.nn.Parameter(weight, requires_grad=False)):
        assert dict(Parser(each._repr_html_()).rows) == {
            "gpushm, read-only tensor": "",
            "shape": "(3, 4)",
            "dtype": "float32",
            "device": "cpu",
            "size": "48 bytes",
        }
    parameter = torch.nn.Parameter(weight, requires_grad=False)
    parameter.data = torch.zeros(3, 4)
    assert parameter._repr_html_() is None
