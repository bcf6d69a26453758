"""Write docs/codemods.md: one section for each codemod, from its docstring and its shortest fixture.

python docs/make_codemods.py
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmrewrite.codemod.registry import Codemods, Registry
from mmrewrite.modernize.registry import ModernizeRegistry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "codemods.md"
HEAD = """# Codemods

One section for each rewrite that `mmrewrite` knows. This page is made from the docstrings and fixtures by
`docs/make_codemods.py`; do not edit it by hand.
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


def shortest_fixture(folder: Path) -> tuple[Path, list[str]] | None:
    """The case below `folder` with the fewest lines, among those in which something changes, as a diff."""
    cases = []
    for after in sorted(folder.glob("*/after.py")):
        old, new = (path.read_text(encoding="utf-8").splitlines() for path in (after.with_name("before.py"), after))
        cases.append((len(old) + len(new), after.parent, old, new))
    if not cases:
        return None
    _, case, old, new = min(cases)
    return case, list(difflib.unified_diff(old, new, n=len(old), lineterm=""))[3:]


def sections(codemods: Codemods[Any], fixtures: Path) -> Iterator[str]:
    """One section for each of `codemods`, whose fixtures lie below `fixtures`."""
    for name in codemods:
        section = f"## {name}\n\n{docstring(codemods.page(name))}\n"
        fixture = shortest_fixture(fixtures / name)
        if fixture:
            case, lines = fixture
            link = case.relative_to(ROOT).as_posix()
            section += f"\nFor example, [{case.name}](../{link}):\n\n```diff\n" + "\n".join(lines) + "\n```\n"
        yield section


def page() -> str:
    """The text of the whole page."""
    fixtures = ROOT / "fixtures"
    hinted = sections(Registry(), fixtures / "hints")
    return "\n".join([HEAD, *hinted, MODERNIZE, *sections(ModernizeRegistry(), fixtures / "modernize")])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
