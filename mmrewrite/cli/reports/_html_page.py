"""The frame of every HTML page, and the pieces that pages share: text, lists and tables.

A page is one file. It loads nothing and runs nothing, which its content security policy tells the browser to enforce:
the only style sheet is the one whose hash the policy names, so pieces of pages have classes and no style attributes.
All that comes from the user goes through `escape` or `inline`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.plan.sections import PlanTable

# The cells of a table with more columns stand below each other on a phone. Where a screen is little wider it scrolls,
# so it must be reachable by keyboard.
_FITTING_COLUMNS = 3
# A table with more rows is unfolded on request, and in print.
_SHOWN_ROWS = 40
# What a cell has that says nothing, and a number of bytes, which stays on one line.
_NOTHING = "-"
_SIZE = re.compile(r"(?<![\d.,])([\d.,]++) ((?:[KMGT]i)?B)")
# Control characters other than tab and carriage return, and characters that have no width or turn the text around.
_UNSEEN = re.compile(
    "[\\0-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]"
)
# Behind which a path may go on in the next line; not that of a tag.
_SLASH = re.compile("(?<!<)/")

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --quiet: #57606a; --line: #d0d7de; --band: #f6f8fa;
  --added: #e6ffec; --removed: #ffebe9; --added-part: #abf2bc; --removed-part: #ffc9c5; --good: #116329;
  --alarm: #a40e26; --care: #7d4e00; --care-band: #fff8e0; --alarm-band: #fff1f0; --good-band: #effaf1;
  --link: #0550ae; --bar-good: #2da44e; --bar-left: #8c959f; --bar-alarm: #cf222e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --quiet: #9da7b1; --line: #3d444d; --band: #161b22; --added: #10301b;
    --removed: #3d1a1d; --added-part: #1c5b31; --removed-part: #7a2b30; --good: #56d364; --alarm: #ff9a94;
    --care: #e3b341; --care-band: #26200f; --alarm-band: #2a1517; --good-band: #0f2416; --link: #79b8ff;
    --bar-good: #3fb950; --bar-left: #6e7681; --bar-alarm: #f85149; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 1400px; padding: 1.6rem clamp(.8rem, 3vw, 2rem) 3rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .6rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; padding-top: 1.1rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
h4 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0 .7rem; }
ul { padding-left: 1.3rem; margin: .3rem 0 .8rem; }
a { color: var(--link); }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  font-size: .92em; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: var(--band); padding: .6rem .8rem; margin: .3rem 0 .8rem; border-radius: 6px; }
summary { cursor: pointer; color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 3px; }
main:focus { outline: none; }
.skip { position: absolute; left: -99rem; background: var(--paper); padding: .4rem .8rem;
  border: 2px solid var(--link); }
.skip:focus { left: 1rem; top: .6rem; z-index: 1; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.eyebrow { color: var(--quiet); margin: 0 0 .4rem; }
.notes { color: var(--quiet); }
.alarm { color: var(--alarm); } .good { color: var(--good); } .care { color: var(--care); }
.unseen { border: 1px solid currentcolor; border-radius: 3px; padding: 0 .2em; font-size: .8em; unicode-bidi: isolate; }
.box { border: 1px solid var(--line); border-left-width: 5px; border-radius: 6px; padding: .6rem .9rem;
  margin: .6rem 0 1rem; color: var(--ink); }
.box > :last-child { margin-bottom: 0; } .box > :first-child { margin-top: 0; }
.box.alarm { border-left-color: var(--bar-alarm); background: var(--alarm-band); }
.box.good { border-left-color: var(--bar-good); background: var(--good-band); }
.box.care { border-left-color: var(--care); background: var(--care-band); }
table { border-collapse: collapse; margin: .2rem 0 1rem; }
th, td { padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--quiet); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; margin: 0 0 .6rem; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .9rem; }
@media (max-width: 700px) { body { padding-top: 1rem; } h1 { font-size: 1.3rem; } .wide table { font-size: .88rem; } }
@media screen and (max-width: 480px) {
  .wide > table:not(.mesh), .wide > table:not(.mesh) :is(tbody, tr, td) { display: block; }
  .wide > table:not(.mesh) thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .wide > table:not(.mesh) tr { border-bottom: 1px solid var(--line); padding: .35rem 0; }
  .wide > table:not(.mesh) td { border: 0; padding: .05rem 0; text-align: left; white-space: normal;
    overflow-wrap: anywhere; }
  td[data-head]::before { content: attr(data-head) ": "; content: attr(data-head) ": " / ""; color: var(--quiet); }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; } .skip, nav { display: none; } a { color: inherit; }
  h2, h3, h4 { break-after: avoid; } tr, .box, svg { break-inside: avoid; }
  .wide { overflow: visible; } .wide table { font-size: 8pt; overflow-wrap: anywhere; }
  .wide :is(th, td) { padding-right: .5rem; } .wide th { overflow-wrap: normal; }
  details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
""".strip()


def page(title: str, head: str, main: Iterable[str], style: str) -> str:
    """The whole page.

    Args:
        title: Its title, as plain text.
        head: What stands above the main content, as HTML: the first heading, and links into the page.
        main: The main content, as HTML.
        style: Rules besides those that every page has.
    """
    sheet = f"\n{_STYLE}\n{style}\n"
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    content = "\n".join(main)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{sheet}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
{head}
</header>
<main id="main" tabindex="-1">
{content}
</main>
<footer><p>Written by mmrewrite. This page is one file: it loads nothing and runs nothing.</p></footer>
</body>
</html>
"""


def plain(text: str) -> str:
    """Escaped text. Characters that cannot be seen, or that reorder their neighbours, are named.

    Otherwise a line could look like another one: https://trojansource.codes.
    """
    return _UNSEEN.sub(lambda found: f'<span class="unseen">U+{ord(found[0]):04X}</span>', escape(text))


def inline(text: str) -> str:
    """Escaped text, with backquoted parts as code."""
    pieces = plain(text).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))


def code(text: str) -> str:
    """Escaped text as code."""
    return f"<code>{plain(text)}</code>"


def bullets(items: Iterable[str], kind: str = "") -> str:
    """A list of pieces of HTML; nothing if there are none."""
    lines = "".join(f"<li>{item}</li>" for item in items)
    mark = f' class="{kind}"' if kind else ""
    return f"<ul{mark}>{lines}</ul>" if lines else ""


def section(title: str, content: Iterable[str], name: str, level: int = 2) -> str:
    """A part of a page under its heading, to which `#name` leads.

    Args:
        title: The heading, as HTML.
        content: What is in it, as HTML.
        name: The anchor.
        level: The level of the heading.
    """
    parts = "\n".join(content)
    return f'<section aria-labelledby="{name}">\n<h{level} id="{name}">{title}</h{level}>\n{parts}\n</section>'


def region(content: str, label: str) -> str:
    """Something wide, in a box that scrolls by itself, also by keyboard."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    """A table; cells are HTML, heads are text.

    Args:
        label: What the table is, for those who do not see its surroundings.
        head: The heads of the columns.
        rows: The cells of each row.
        numeric: For each column, whether it holds numbers.
    """
    marks = [' class="number"' if number else "" for number in numeric] or [""] * len(head)
    heads = "".join(f'<th scope="col"{mark}>{escape(name)}</th>' for name, mark in zip(head, marks, strict=True))
    fits = len(head) <= _FITTING_COLUMNS
    if not fits:
        # Where cells stand below each other, each says what it is.
        marks = [f'{mark} data-head="{escape(name)}"' for name, mark in zip(head, marks, strict=True)]
    body = "\n".join(
        "<tr>" + "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in rows
    )
    text = f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<table aria-label="{escape(label)}">{text}' if fits else region(f"<table>{text}", label)


def _cell(text: str) -> str:
    return _SLASH.sub("/<wbr>", _SIZE.sub(r"\1&nbsp;\2", inline(text)))


def plan_table(shown: PlanTable, level: int) -> str:
    """A table of a plan, under its title, without columns that say nothing of any row."""
    columns = [(number, [row[number] for row in shown.rows]) for number in range(len(shown.head))]
    kept = {number: cells for number, cells in columns if not cells or set(cells) != {_NOTHING}}
    numeric = [
        shown.numeric[number] or all(cell == _NOTHING or _SIZE.fullmatch(cell) for cell in cells)
        for number, cells in kept.items()
    ]
    head = [shown.head[number] for number in kept]
    rows = [[_cell(row[number]) for number in kept] for row in shown.rows]
    text = table(shown.title, head, rows, numeric)
    if len(rows) > _SHOWN_ROWS:
        text = f"<details><summary>All {len(rows)} rows</summary>\n{text}</details>"
    return f"<h{level}>{escape(shown.title)}</h{level}>\n{text}"
