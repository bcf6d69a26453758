"""Write docs/codemods.md: one section for each codemod, from its docstring and its shortest fixture.

python docs/make_codemods.py
"""

from __future__ import annotations

import difflib
from pathlib import Path

from mmrewrite.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "codemods.md"
HEAD = """# Codemods

One section for each rewrite that `mmrewrite` knows. This page is made from the docstrings and fixtures by
`docs/make_codemods.py`; do not edit it by hand.
"""


def docstring(text: str) -> str:
    """A docstring as Markdown: its indented lines become a code block."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            paragraph = "```text\n" + "\n".join(line.removeprefix("    ") for line in paragraph.split("\n")) + "\n```"
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def shortest_fixture(name: str) -> tuple[str, list[str]] | None:
    """The case of a codemod with the fewest lines, among those in which something changes, as a diff."""
    cases = []
    for after in sorted((ROOT / "fixtures" / name).glob("*/after.py")):
        old, new = (path.read_text(encoding="utf-8").splitlines() for path in (after.with_name("before.py"), after))
        cases.append((len(old) + len(new), after.parent.name, old, new))
    if not cases:
        return None
    _, case, old, new = min(cases)
    return case, list(difflib.unified_diff(old, new, n=len(old), lineterm=""))[3:]


def page() -> str:
    """The text of the whole page."""
    codemods = Registry()
    sections = [HEAD]
    for name in codemods:
        section = f"## {name}\n\n{docstring(codemods.page(name))}\n"
        fixture = shortest_fixture(name)
        if fixture:
            case, lines = fixture
            section += (
                f"\nFor example, [{case}](../fixtures/{name}/{case}):\n\n```diff\n" + "\n".join(lines) + "\n```\n"
            )
        sections.append(section)
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
