"""Hold pages and help texts to the words of tools/vocabulary.toml, to the length of a sentence there, and to proselint.

    python tools/check_prose.py

Code is left out. proselint is a Python package, and reads nothing from elsewhere. The exit status is 1 if anything is
found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from mmrewrite.cli.commands import cli

ROOT = Path(__file__).resolve().parents[1]
RULES = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text(encoding="utf-8"))
# What is no prose: blocks and spans of code, comments, tags, the targets of links, and addresses.
_NO_PROSE = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|<[^>\n]+>|(?<=\])\([^)\s]*\)|https?://\S+", re.MULTILINE | re.DOTALL
)
_SPAN = re.compile(r"`[^`]+`")
# Rows of tables, headings and definitions stand for themselves.
_ALONE = re.compile(r"^(\||#|:::|---)")
_ITEM = re.compile(r"^\s*([-*]|\d+\.) |^:   ")


def texts() -> Iterator[tuple[str, str]]:
    """Names of pages and commands, and their texts."""
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]:
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for name, command in {"": cli, **cli.commands}.items():
        options = (option.help or "" for option in command.params if isinstance(option, click.Option))
        yield f"mmrewrite {name} --help".replace("  ", " "), "\n\n".join([command.help or "", *options])


def prose(text: str) -> str:
    """A text with spaces for what is no prose, so that every line stays where it is; a span of code is one word."""
    blank = _NO_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return _SPAN.sub(lambda found: "X" + re.sub(r"[^\n]", " ", found[0])[1:], blank)


def words_found(text: str) -> Iterator[tuple[int, str]]:
    """Lines and sentences about words for which there is another one."""
    for say, others in RULES["words"].items():
        for found in re.finditer(rf"(?<![\w-])({'|'.join(others)})(?![\w-])", text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, f"say `{say}`, not `{found[0]}`"


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Lines and beginnings of sentences that are too long."""
    paragraph: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate([*lines, ""], start=1):
        ends = not line.strip() or _ALONE.match(line) is not None
        if paragraph and (ends or _ITEM.match(line)):
            for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph)):
                if len(count := sentence.split()) > RULES["sentences"]["longest"]:
                    yield number - len(paragraph), f"{len(count)} words: {' '.join(count[:8])} ..."
            paragraph = []
        if not ends:
            paragraph.append(line)


def usage_found(pages: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """What proselint says: name, line and sentence."""
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for number, (name, text) in enumerate(pages.items()):
            path = Path(folder, f"{number}.md")
            path.write_text(text, encoding="utf-8")
            names[str(path)] = name
        command = [sys.executable, "-m", "proselint", "check", "-o", "json", *names]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not ran.stdout:
            raise SystemExit(f"proselint said nothing: {ran.stderr.strip()}")
        for address, found in json.loads(ran.stdout)["result"].items():
            for problem in found["diagnostics"]:
                if not problem["check_path"].startswith(tuple(RULES["proselint"]["without"])):
                    yield names[address.removeprefix("file://")], problem["pos"][0], problem["message"]


def findings() -> Iterator[tuple[str, int, str]]:
    """All that is found: name of the text, line, and what to change."""
    pages = {name: prose(text) for name, text in texts()}
    for name, text in pages.items():
        found = [*words_found(text), *([] if name in RULES["sentences"]["free"] else long_sentences(text))]
        yield from ((name, line, what) for line, what in found)
    yield from usage_found(pages)


def main() -> int:
    """Print what is found."""
    found = sorted(findings())
    for name, line, what in found:
        print(f"{name}:{line}: {what}")
    print(f"{len(found)} found" if found else "every text is in the words of the vocabulary")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
