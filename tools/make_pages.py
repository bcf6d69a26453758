"""Write what pages show of other files, such as programs, between the marks that name these files.

    python tools/make_pages.py

A page reads the same in the repository and on the site, so it holds the text itself. The marks are comments of
Markdown: `<!-- from: examples/recipes/evaluate.py -->` and `<!-- end -->`. `README.md#compare` is what stands in that
file between `<!-- begin: compare -->` and `<!-- end -->`; `train.py#plain` is a program without its hints.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SHOWN = re.compile(r"^(?P<mark><!-- from: (?P<path>[^\s#]+)(?:#(?P<section>\w+))? -->\n).*?^<!-- end -->$", re.M | re.S)
HINT = re.compile(r"^ *# mm:.*\n|  # mm:.*", re.MULTILINE)
LANGUAGES = {".py": "python", ".diff": "diff", ".toml": "toml", ".txt": "text"}


def rendered(text: str, folder: str = "docs") -> str:
    """A page of a folder of the repository, with what it shows as the files are now."""

    def shown(match: re.Match[str]) -> str:
        path, section = match["path"], match["section"]
        source = (ROOT / path).read_text(encoding="utf-8")
        if section is None or section == "plain":
            source = HINT.sub("", source) if section else source
            return f"{match['mark']}\n```{LANGUAGES[Path(path).suffix]}\n{source.rstrip()}\n```\n\n<!-- end -->"
        found = re.search(rf"^<!-- begin: {section} -->\n(.*?)^<!-- end -->$", source, re.MULTILINE | re.DOTALL)
        if found is None:
            raise ValueError(f"{path} has no section {section!r}")
        here = posixpath.relpath(posixpath.dirname(path) or ".", folder)
        text = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", lambda link: f"]({_joined(here, link[1])})", found[1])
        return f"{match['mark']}{text}<!-- end -->"

    return SHOWN.sub(shown, text)


def _joined(folder: str, target: str) -> str:
    path, mark, anchor = target.partition("#")
    # A link of README.md into docs is one to a page beside this one.
    return posixpath.normpath(posixpath.join(folder, path)).removeprefix("../docs/") + mark + anchor


def shown(text: str) -> list[str]:
    """The files that a page shows."""
    return [match["path"] for match in SHOWN.finditer(text)]


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        was = page.read_text(encoding="utf-8")
        if (now := rendered(was)) != was:
            page.write_text(now, encoding="utf-8")
