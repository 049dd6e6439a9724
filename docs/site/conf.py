# SPDX-License-Identifier: Apache-2.0
"""The site that `make docs` builds (scripts/docs.sh).

The source folder is the repository, so that a link between two files is the same with and without the site.
docs/README.md is the index: its lists are the navigation, and a page that it does not list is an error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

project = "gpushm"
author = copyright = "gpushm"
_version = re.search(r"project\(gpushm VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
assert _version is not None, "CMakeLists.txt has no version"
version = release = _version.group(1)

extensions = ["myst_parser", "breathe"]
root_doc = "docs/README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "results/README.md",
    "deploy/**/README.md",
    "examples/README.md",
    "tests/model/README.md",
]
exclude_patterns = ["build", ".*"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]

breathe_projects = {kind: str(ROOT / "build/docs/doxygen" / kind) for kind in ("c", "cpp")}
breathe_default_project = "cpp"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_default_members = ("members", "undoc-members")
# Each C++ header declares the namespace.
suppress_warnings = ["duplicate_declaration.cpp"]

html_theme = "furo"
html_title = f"gpushm {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def _navigation(text: str) -> str:
    """Hidden tables of contents, one for each section of the index, in its order."""
    parts = [text]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        caption = section.split("\n", 1)[0].split(":")[0]
        pages = [link[1] for link in LINK.findall(section) if link[1].endswith(".md")]
        listed = "\n".join(
            posixpath.join("/", posixpath.normpath(posixpath.join("docs", page)))[: -len(".md")]
            for page in pages
        )
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n")
    return "\n".join(parts)


def _contents(page: str, text: str) -> str:
    """A hidden table of contents of the pages below the folder that its README.md links to."""
    links = {posixpath.normpath(link[1]): None for link in LINK.findall(text)}
    pages = [link for link in links if link.endswith(".md") and not link.startswith("..")]
    pages = [each for each in pages if (ROOT / Path(page).parent / each).exists()]
    listed = "\n".join(each[: -len(".md")] for each in pages)
    return f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n" if pages else ""


def _links_to_folders(page: str, text: str) -> str:
    """A link to a folder is one to its README.md; without one, it is text."""

    def replace(link: re.Match[str]) -> str:
        label, target = link.group(1), link.group(2)
        folder = ROOT / Path(page).parent / target
        if "://" in target or not folder.is_dir():
            return link.group(0)
        if (folder / "README.md").exists():
            return f"[{label}]({posixpath.join(target, 'README.md')})"
        return label

    return LINK.sub(replace, text)


def _read(app: Any, page: str, source: list[str]) -> None:
    source[0] = _links_to_folders(page, source[0])
    if page == root_doc:
        source[0] = _navigation(source[0])
    elif page.endswith("/README"):
        source[0] += _contents(page, source[0])


def _finish(app: Any, exception: Exception | None) -> None:
    """Makes the site's first page lead to the index."""
    if exception is None:
        (Path(app.outdir) / "index.html").write_text(
            '<!doctype html>\n<meta charset="utf-8">\n<title>gpushm</title>\n'
            f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
            f'<a href="{root_doc}.html">Documentation of gpushm</a>\n'
        )


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
