# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of segments, arrays and tables of tensors (``_repr_html_``)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpushm._frameworks import DTYPES

if TYPE_CHECKING:
    from gpushm._core import Array, Segment
    from gpushm._table import Table
    from gpushm._types import SegmentInfo

__all__: list[str] = []

# Of a table of tensors; the others are counted.
_MAX_ROWS = 50


def _bytes(size: int) -> str:
    """A number of bytes with its unit, and the number itself where the unit is not exact."""
    number, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    if unit == "bytes":
        return f"{size} bytes"
    return f"{number:.4g} {unit}" + ("" if number == int(number) else f" ({size} bytes)")


def _element(tag: str, content: object) -> str:
    return f"<{tag}>{html.escape(str(content))}</{tag}>"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]], foot: str = "") -> str:
    """A table whose cells are escaped. The first cell of a row is its head."""
    lines = ["<table>", "<tr>" + "".join(_element("th", each) for each in head) + "</tr>"]
    for first, *others in rows:
        cells = "".join(_element("td", each) for each in others)
        lines.append(f"<tr>{_element('th', first)}{cells}</tr>")
    lines.append("</table>" + foot)
    return "\n".join(lines)


def _properties(kind: str, properties: Mapping[str, object]) -> str:
    return _table([kind, ""], properties.items())


def of_segment(segment: Segment) -> str:
    if segment.closed:
        return _properties("gpushm.Segment", {"state": "closed"})
    return _properties(
        "gpushm.Segment",
        {
            "name": segment.name,
            "size": _bytes(segment.size),
            "device": segment.device,
            "access": segment.access,
            "state": segment.state,
            "lifetime": segment.lifetime,
            "backend": segment.backend,
        },
    )


def of_segment_info(info: SegmentInfo) -> str:
    return _properties(
        "gpushm.SegmentInfo",
        {
            "name": info.name,
            "size": _bytes(info.size),
            "device": info.device,
            "state": info.state if info.published else f"{info.state}, not published",
            "lifetime": info.lifetime,
            "leases": info.leases,
        },
    )


def of_array(array: Array, name: str, device: str, state: str) -> str:
    """``name``, ``state``: of its segment; empty: it is memory of another library."""
    properties: dict[str, object] = {"segment": name} if name else {}
    properties |= {
        "shape": array.shape,
        "dtype": array.dtype,
        "device": device,
        "size": _bytes(array.nbytes),
        "access": "read" if array.readonly else "read-write",
    }
    if state:
        properties["state"] = state
    return _properties("gpushm.Array", properties)


def of_weight(tensor: Any) -> str:
    """Of a tensor of PyTorch in a segment, by its shape: its elements are many."""
    return _properties(
        "gpushm, read-only tensor",
        {
            "shape": tuple(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": tensor.device,
            "size": _bytes(tensor.nbytes),
        },
    )


def of_tensors(table: Table) -> str:
    """A segment with its tensors."""
    text = of_segment(table.segment)
    if table.segment.closed:
        return text
    names = table.names()
    rows = []
    for name in names[:_MAX_ROWS]:
        entry = table.entry(name)
        dtype = DTYPES.get(entry["dtype"], entry["dtype"])
        rows.append((name, entry.get("framework_dtype", dtype), tuple(entry["shape"])))
    more = len(names) - len(rows)
    foot = _element("p", f"and {more} more tensors") if more else ""
    return f"{text}\n{_table(['tensor', 'dtype', 'shape'], rows, foot)}"
