"""The site's own pages: what they include exists and is up to date, and messages that they quote are in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("mmrewrite", "codemods/mmcodemods", "codemods/mmmodernize", "runtime/mmruntime")
TROUBLESHOOTING = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
# Headings in code are messages of ours, but for JAX's own.
QUOTED = [text.strip() for _, text in re.findall(r"^### (`+)(.+?)\1$", TROUBLESHOOTING, re.MULTILINE)]
NOT_OURS = {"Received incompatible devices for jitted computation"}
# What differs, in an f-string or in a text for `.format`, and the `...` of the page.
HOLE = re.compile(r"\{[^{}]*\}|%[sd]|\0|\.\.\.")


def texts(node: ast.AST) -> Iterator[str]:
    """The string literals of a module, with a mark for each value of an f-string."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            values = (value.value if isinstance(value, ast.Constant) else "\0" for value in part.values)
            yield "".join(str(value) for value in values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@pytest.fixture(scope="module")
def source() -> list[str]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [text for path in files for text in texts(ast.parse(path.read_text(encoding="utf-8"))) if " " in text]


def is_in(quoted: str, source: list[str]) -> bool:
    parts = [re.escape(part.strip()) for part in HOLE.split(quoted) if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in source)


def test_each_message_of_the_troubleshooting_page_is_in_the_source(source: list[str]) -> None:
    assert len(QUOTED) > 20
    assert [quoted for quoted in QUOTED if quoted not in NOT_OURS and not is_in(quoted, source)] == []
    assert not is_in("a message that nobody ever ... wrote", source)


def included() -> list[str]:
    return sorted(
        {name for page in DOCS.glob("*.md") for name in re.findall(r'--8<-- "([^"]+)"', page.read_text("utf-8"))}
    )


def test_every_program_of_the_tutorial_and_the_recipes_is_shown() -> None:
    programs = [path for folder in ("tutorial", "recipes") for path in (ROOT / "examples" / folder).rglob("*.py")]
    shown = {path.relative_to(ROOT).as_posix() for path in programs}
    assert shown <= set(included())
    assert [name for name in included() if not (ROOT / name.partition(":")[0]).is_file()] == []


def test_the_tutorial_marks_the_hints() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for lines, name in re.findall(r'hl_lines="([\d ]+)"\n\s+--8<-- "([^"]+)"', page):
        text = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert [int(line) for line in lines.split()] == [n for n, line in enumerate(text, 1) if "# mm: " in line], name


def test_what_the_tutorial_shows_is_what_the_tool_prints() -> None:
    made = load_script("tools/make_outputs.py").outputs()
    assert {path.name for path in (DOCS / "outputs").iterdir()} == set(made)
    stale = [name for name, text in made.items() if (DOCS / "outputs" / name).read_text("utf-8") != text]
    assert stale == [], "run: python tools/make_outputs.py"


def test_the_navigation_has_every_page() -> None:
    """`mkdocs build --strict` holds it too; this needs no MkDocs."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\b(\w+\.md)\b", config)) == {page.name for page in DOCS.glob("*.md")}
