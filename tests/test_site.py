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


PAGES = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}


def test_pages_show_files_as_they_are() -> None:
    maker = load_script("tools/make_pages.py")
    stale = [name for name, text in PAGES.items() if maker.rendered(text) != text]
    assert stale == [], "run: python tools/make_pages.py"
    programs = [path for folder in ("tutorial", "recipes") for path in (ROOT / "examples" / folder).rglob("*.py")]
    shown = {name for text in PAGES.values() for name in maker.shown(text)}
    assert {path.relative_to(ROOT).as_posix() for path in programs} <= shown


def test_pages_read_the_same_in_the_repository_and_on_the_site() -> None:
    """No marks that only a generator of sites understands, outside of code."""
    marks = re.compile(r'^(?:--8<--|===[+!]? "|!!! |\?\?\?[+ ]|::: |\[TOC\]|\{\{)|\{ ?[.#:][\w-]', re.MULTILINE)
    prose = {name: re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S) for name, text in PAGES.items()}
    assert [name for name, text in prose.items() if marks.search(re.sub(r"`[^`\n]*`", "", text))] == []


def test_what_the_tutorial_shows_is_what_the_tool_prints() -> None:
    made = load_script("tools/make_outputs.py").outputs()
    assert {path.name for path in (DOCS / "outputs").iterdir()} == set(made)
    stale = [name for name, text in made.items() if (DOCS / "outputs" / name).read_text("utf-8") != text]
    assert stale == [], "run: python tools/make_outputs.py"


def test_the_navigation_has_every_page() -> None:
    """`mkdocs build --strict` holds it too; this needs no MkDocs."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\b(\w+\.md)\b", config)) == {page.name for page in DOCS.glob("*.md")}
