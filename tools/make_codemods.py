"""Write docs/codemods.md: one section for each codemod, from its docstring and its shortest fixture.

The site has the same sections, each as a page of its own: tools/site_hooks.py.

python tools/make_codemods.py
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmmodernize.registry import ModernizeRegistry
from mmrewrite.codemod.registry import Codemods, Registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "codemods.md"
HEAD = """# Codemods

One section for each rewrite that `mmrewrite` knows. This page is made from the docstrings and fixtures by
`tools/make_codemods.py`; do not edit it by hand.
"""
MODERNIZE = """# Codemods of `mmrewrite modernize`

They replace old names of JAX, and need no hints: see [modernize.md](modernize.md).
"""


def docstring(text: str) -> str:
    """A docstring as Markdown: its indented lines become a code block."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            paragraph = "```text\n" + "\n".join(line.removeprefix("    ") for line in paragraph.split("\n")) + "\n```"
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


# About spelling, so not for a page; the shortest of their codemods.
ODD = {"carriage_returns", "no_space_after_word"}


def shortest_fixture(folder: Path) -> tuple[Path, list[str]] | None:
    """The case below `folder` with the fewest lines, among those in which something changes, as a diff."""
    cases = []
    for after in sorted(folder.glob("*/after.py")):
        if after.parent.name in ODD:
            continue
        old, new = (path.read_text(encoding="utf-8").splitlines() for path in (after.with_name("before.py"), after))
        cases.append((len(old) + len(new), after.parent, old, new))
    if not cases:
        return None
    _, case, old, new = min(cases)
    return case, list(difflib.unified_diff(old, new, n=len(old), lineterm=""))[3:]


def section(codemods: Codemods[Any], name: str, fixtures: Path) -> str:
    """The section of one of `codemods`, whose fixtures lie below `fixtures`."""
    text = f"## {name}\n\n{docstring(codemods.page(name))}\n"
    fixture = shortest_fixture(fixtures / name)
    if fixture:
        case, lines = fixture
        link = case.relative_to(ROOT).as_posix()
        text += f"\nFor example, [{case.name}](../{link}):\n\n```diff\n" + "\n".join(lines) + "\n```\n"
    return text


def kinds() -> Iterator[tuple[str, Codemods[Any], Path]]:
    """The beginning of each part of the page, its codemods, and the folder of their fixtures."""
    yield HEAD, Registry(), ROOT / "fixtures" / "hints"
    yield MODERNIZE, ModernizeRegistry(), ROOT / "fixtures" / "modernize"


def page() -> str:
    """The text of the whole page."""
    parts = [[head, *(section(codemods, name, folder) for name in codemods)] for head, codemods, folder in kinds()]
    return "\n".join(text for part in parts for text in part)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
