#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots what a Prometheus answers to the queries of the dashboard, as one SVG file: no Grafana is needed.

docs/dashboard.svg is the output of tests/monitoring/dashboard_plots.cpp, which starts real programs and runs this script.
"""
import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

COLUMNS = 3
CELL_WIDTH, CELL_HEIGHT = 440, 312
LEFT, RIGHT, TOP = 76, 20, 34  # of the plot in its cell
PLOT_HEIGHT = 150
HEADER = 64
MAX_LEGEND = 5
MAX_NAME = 40  # characters; longer names lose their middle
POINTS = 120
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2"]
SCALES = {  # of a unit: factor and suffix, ascending
    "bytes": [(1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")],
    "s": [(1e-6, "µs"), (1e-3, "ms"), (1, "s")],
    "percentunit": [(0.01, "%")],
    "short": [(1, "")],
}


def ask(prometheus, path, **parameters):
    url = f"{prometheus}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        answer = json.load(reply)
    if answer["status"] != "success":
        raise RuntimeError(f"{url}: {answer}")
    return answer["data"]["result"]


def name_of(series, legend):
    labels = series["metric"]
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
    text = " ".join(text.split())
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME - 13]}…{text[-12:]}"


def lines_of(series, start, step):
    """Lists of (index of the step, value) without a gap in between. NaN, such as 0 / 0, is a gap."""
    lines, last = [], None
    for at, text in series["values"]:
        index, value = round((at - start) / step), float(text)
        if not math.isfinite(value):
            continue
        if last is None or index != last + 1:
            lines.append([])
        lines[-1].append((index, value))
        last = index
    return lines


def scale_of(unit, highest):
    fitting = [scale for scale in SCALES[unit] if scale[0] <= highest]
    return fitting[-1] if fitting else SCALES[unit][0]


def axis_of(highest):
    """The distance of the ticks and their number, so that they reach at least `highest`."""
    rough = max(highest, 1e-12) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return step, max(1, math.ceil(highest / step * 0.999))


def number(value):
    return f"{value:.6g}"


def straightened(points):
    """Without the points inside of horizontal lines."""
    return [point for i, point in enumerate(points)
            if not (0 < i < len(points) - 1 and points[i - 1][1] == point[1] == points[i + 1][1])]


def plot(panel, answer, start, step, seconds):
    """The elements of a panel, relative to its corner."""
    defaults = panel["fieldConfig"]["defaults"]
    legend = panel["targets"][0]["legendFormat"]
    width = CELL_WIDTH - LEFT - RIGHT
    bottom = TOP + PLOT_HEIGHT
    drawn = []
    for series in answer:
        lines = lines_of(series, start, step)
        if lines:
            drawn.append((lines[-1][-1][1], name_of(series, legend), lines))
    drawn.sort(key=lambda each: (-each[0], each[1]))
    highest = max((value for _, _, lines in drawn for line in lines for _, value in line), default=0)
    factor, suffix = scale_of(defaults["unit"], highest)
    tick, ticks = axis_of(highest / factor if highest > 0 else 1)
    x = lambda index: LEFT + index * step / seconds * width
    y = lambda value: bottom - value / factor / (tick * ticks) * PLOT_HEIGHT

    out = [f'<text class="title" x="{LEFT}" y="20">{escape(panel["title"])}</text>']
    for i in range(ticks + 1):
        at = round(bottom - i / ticks * PLOT_HEIGHT, 1)
        out.append(f'<path class="grid" d="M{LEFT} {at:g}h{width}"/>')
        text = f"{number(i * tick)} {suffix}".strip()
        out.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{at + 4:g}">{text}</text>')
    for i in range(5):
        at = LEFT + i / 4 * width
        text = f"{number(seconds / 60 * i / 4)} min" if i in (0, 4) else number(seconds / 60 * i / 4)
        anchor = "end" if i == 4 else "middle"
        out.append(f'<text class="tick" text-anchor="{anchor}" x="{at:g}" y="{bottom + 16}">{text}</text>')
    if not drawn:
        out.append(f'<text class="none" text-anchor="middle" x="{LEFT + width / 2:g}" y="{TOP + PLOT_HEIGHT / 2:g}">'
                   "no samples</text>")
    for i, (last, name, lines) in enumerate(drawn):
        color = COLORS[i % len(COLORS)]
        for line in lines:
            points = [(round(x(index), 1), round(y(value), 1)) for index, value in line]
            if len(points) == 1:
                points.append((points[0][0] + 1, points[0][1]))
            text = " ".join(f"{px:g},{py:g}" for px, py in straightened(points))
            out.append(f'<polyline stroke="{color}" points="{text}"/>')
        if i < MAX_LEGEND:
            at = bottom + 34 + i * 15
            out.append(f'<path stroke="{color}" stroke-width="3" d="M{LEFT} {at - 4}h16"/>')
            own_factor, own_suffix = scale_of(defaults["unit"], last)
            value = f"{last / own_factor:.3g} {own_suffix}".strip()
            text = f"{name}: {value}" if name else value
            out.append(f'<text class="tick" x="{LEFT + 22}" y="{at}">{escape(text)}</text>')
    if len(drawn) > MAX_LEGEND:
        at = bottom + 34 + MAX_LEGEND * 15
        out.append(f'<text class="tick" x="{LEFT + 22}" y="{at}">and {len(drawn) - MAX_LEGEND} more</text>')
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--dashboard", default="deploy/monitoring/dashboard.json", metavar="FILE")
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=21600, help="until now (default: 6 hours)")
    parser.add_argument("--note", default="", help="what was scraped")
    arguments = parser.parse_args()

    with open(arguments.dashboard, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    step = arguments.seconds / POINTS
    end = time.time()
    start = end - arguments.seconds
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * CELL_WIDTH, HEADER + rows * CELL_HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<!-- SPDX-License-Identifier: Apache-2.0. Written by scripts/plot_dashboard.py. -->",
        "<style>text{font-family:DejaVu Sans,Verdana,sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}"
        ".tick{font-size:12px}.none{font-size:13px;fill:#777}.grid{stroke:#ddd;fill:none}"
        "polyline{fill:none;stroke-width:1.5}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<text class="title" x="16" y="26" id="heading">Plots of scraped answers, no Grafana: '
        "the panels of deploy/monitoring/dashboard.json</text>",
        f'<text class="tick" x="16" y="48">{escape(arguments.note)}</text>',
    ]
    for i, panel in enumerate(panels):
        answer = ask(arguments.prometheus, "/api/v1/query_range", query=panel["targets"][0]["expr"],
                     start=start, end=end, step=step)
        column, row = i % COLUMNS, i // COLUMNS
        out.append(f'<g class="panel" transform="translate({column * CELL_WIDTH} {HEADER + row * CELL_HEIGHT})">')
        out += plot(panel, answer, start, step, arguments.seconds)
        out.append("</g>")
    out.append("</svg>")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


main()
