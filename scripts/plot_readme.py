#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of README.md: two pods, one broker, one copy of GPU memory.

    scripts/plot_readme.py            writes docs/overview.svg
    scripts/plot_readme.py --check    fails if docs/overview.svg is not what this script draws
"""
import sys
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "overview.svg"
WIDTH, HEIGHT = 480, 404  # small, so that the text is legible on a telephone
PRIVILEGES = ("hostPID", "hostIPC", "privileged")
TITLE = "Two pods use one copy of GPU memory"
DESCRIPTION = (
    "A broker gives two pods file descriptors of one allocation of GPU memory. Each pod maps it. "
    "Neither pod has hostPID, hostIPC or privileged."
)

COLOURS = {  # of the light and the dark mode. No CSS variables: librsvg and Inkscape do not have them.
    ".page": ("fill: #ffffff", "fill: #0d1117"),
    "text": ("fill: #1f2328", "fill: #f0f6fc"),
    ".soft": ("fill: #59636e", "fill: #b1bac4"),
    ".broker": ("fill: #f6f8fa; stroke: #818b98", "fill: #1c2128; stroke: #9198a1"),
    ".pod": ("fill: #ddf4ff; stroke: #0969da", "fill: #10233d; stroke: #4493f8"),
    ".memory": ("fill: #dafbe1; stroke: #1a7f37", "fill: #12301c; stroke: #3fb950"),
    ".request": ("stroke: #818b98", "stroke: #9198a1"),
    ".request-head": ("fill: #818b98", "fill: #9198a1"),
    ".map": ("stroke: #1a7f37", "stroke: #3fb950"),
    ".map-head": ("fill: #1a7f37", "fill: #3fb950"),
}
SHAPES = """
text { font: 16px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; text-anchor: middle; }
.head { font-size: 17px; font-weight: 600; }
.code { font: 15px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.soft { font-size: 15px; }
rect { stroke-width: 2; }
.request { stroke-width: 2; stroke-dasharray: 5 4; }
.map { stroke-width: 4; }
"""


def style():
    light, dark = (
        "\n".join(f"{name} {{ {colours[mode]}; }}" for name, colours in COLOURS.items()) for mode in (0, 1)
    )
    return f"{SHAPES}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def box(kind, left, top, width, height):
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="10"/>'


def text(x, y, words, kind=""):
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x}" y="{y}">{escape(words)}</text>'


def arrow(kind, x, top, bottom):
    """A vertical line with a head at both ends."""
    return [
        f'<path class="{kind}" d="M{x} {top + 9}V{bottom - 9}"/>',
        f'<path class="{kind}-head" d="M{x} {top + 1}l7 11h-14z"/>',
        f'<path class="{kind}-head" d="M{x} {bottom - 1}l7 -11h-14z"/>',
    ]


def pod(left, name, call):
    width, top = 222, 128
    middle = left + width // 2
    return [
        box("pod", left, top, width, 148),
        text(middle, top + 28, name, "head"),
        text(middle, top + 55, call, "code"),
        *(text(middle, top + 84 + 22 * row, f"no {words}", "soft") for row, words in enumerate(PRIVILEGES)),
        *arrow("request", middle, 78, top),
        *arrow("map", middle, 276, 332),
    ]


def picture():
    middle = WIDTH // 2
    parts = [
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        box("broker", 8, 10, WIDTH - 16, 68),
        text(middle, 38, "broker of the node", "head"),
        text(middle, 62, "has names and leases; never uses the GPU", "soft"),
        *pod(8, "pod A: producer", 'create("w/llama")'),
        *pod(250, "pod B: consumer", 'open("w/llama")'),
        text(middle, 108, "descriptors", "soft"),
        text(middle, 309, "mapped, no copy", "soft"),
        box("memory", 8, 332, WIDTH - 16, 64),
        text(middle, 359, "one copy in GPU memory: w/llama", "head"),
        text(middle, 383, "can outlive pod A", "soft"),
    ]
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"
     width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title description">
<!-- Written by scripts/plot_readme.py. -->
<title id="title">{TITLE}</title>
<desc id="description">{DESCRIPTION}</desc>
<style>{style()}</style>
{body}
</svg>
"""


def main():
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != picture():
            sys.exit(f"{PICTURE.name} is not current: run scripts/plot_readme.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PICTURE.write_text(picture())


main()
