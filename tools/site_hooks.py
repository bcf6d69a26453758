"""Hooks of the site: a page for each codemod, links to files of the repository, nothing loaded from elsewhere.

Named under `hooks` in mkdocs.yml; the functions are events of MkDocs: https://www.mkdocs.org/dev-guide/plugins/#events
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
TO_CODEMOD = re.compile(r"\]\(codemods\.md#(\w+)\)")
# Tags that make a browser fetch something when the page is opened; a link that is clicked is another matter.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"?https?:[^>]*>|<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+https?:[^>]*>"
)


def _load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_codemods", ROOT / "tools" / "make_codemods.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


MAKER = _load_maker()


def on_config(config: Any) -> Any:
    """Put the page of each codemod into the navigation, below their list."""
    (entries,) = (entry["Codemods"] for entry in config.nav if "Codemods" in entry)
    for title, (_, codemods, _) in zip(("For hints", "For modernize"), MAKER.kinds(), strict=True):
        entries.append({title: [{name: f"codemods/{name}.md"} for name in codemods]})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the page of each codemod: its section, one folder further down."""
    for _, codemods, folder in MAKER.kinds():
        for name in codemods:
            text = MAKER.section(codemods, name, folder).removeprefix("#").replace("](../", "](../../")
            files.append(File.generated(config, f"codemods/{name}.md", content=text))
    return files


def _list_codemods() -> str:
    """The page that takes the place of docs/codemods.md: its heads, with lists of links for the sections."""
    parts = []
    for head, codemods, _ in MAKER.kinds():
        # The remark that docs/codemods.md is generated does not hold for the list.
        text = "\n\n".join(paragraph for paragraph in head.split("\n\n") if "make_codemods" not in paragraph)
        text = "#" + text if parts else text
        parts.append(
            text + "\n\n" + "\n".join(f"- [{name}](codemods/{name}.md): {codemods.summary(name)}" for name in codemods)
        )
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Lead links to where they lead on the site."""
    where = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == "codemods.md":
        markdown = _list_codemods()
    markdown = TO_CODEMOD.sub(r"](codemods/\1.md)", markdown)

    def link(match: re.Match[str]) -> str:
        text, target = match[1], posixpath.normpath(posixpath.join("docs", where, match[2]))
        if target.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(target, posixpath.join('docs', where))}{match[3] or ''})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{target}{match[3] or ''})"
        shown = text.strip("`")
        return f"`{target}`" if shown == target or target.endswith("/" + shown) else f"{text} (`{target}`)"

    return LINK.sub(link, markdown)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Refuse a page that loads something from elsewhere."""
    fetched = FETCHED.search(output)
    if fetched:
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {fetched[0]}")
    return output
