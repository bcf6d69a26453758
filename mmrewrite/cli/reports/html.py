"""HTML: a plan, or a review of the changes, as one page that loads nothing else.

It follows the reader's light or dark setting, fits narrow screens and print, and is in order of headings for screen
readers.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mmrewrite.cli.reports import RewriteReport
from mmrewrite.cli.reports import _html_plan as parts

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --quiet: #57606a; --line: #d0d7de; --band: #f6f8fa;
  --added: #dafbe1; --removed: #ffebe9; --alarm: #a40e26; --link: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --quiet: #9da7b1; --line: #3d444d; --band: #161b22; --added: #12361f;
    --removed: #4b1b1e; --alarm: #ff9a94; --link: #79b8ff; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1400px; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .3rem; padding-top: 1rem; border-top: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
a { color: var(--link); }
code, pre { font-family: ui-monospace, monospace; font-size: .92em; }
summary { cursor: pointer; color: var(--quiet); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
""".strip()


def _plan(planned: Planned) -> str:
    """The whole page; it ends with the refusals and errors, which say why something is missing."""
    sections = [parts.section_html(section) for section in planned.sections]
    body = sections or ["<p>There is nothing to plan in these files.</p>"]
    if planned.problems:
        problems = "\n".join(map(escape, planned.problems))
        body.append(f"<h2>Left out</h2>\n<pre>{problems}</pre>")
    return _page("mmrewrite plan", "What runs where", parts.STYLE, body)


def _review(report: RewriteReport) -> str:
    from mmrewrite.cli.reports import _html_review as review

    return _page("mmrewrite", "What changes", f"{parts.STYLE}\n{review.STYLE}", list(review.body(report)))


RENDERERS = {"plan": _plan, **dict.fromkeys(("diff", "check", "modernize"), _review)}


def _page(title: str, heading: str, style: str, body: list[str]) -> str:
    content = "\n".join(body)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}
{style}
</style>
</head>
<body>
<main>
<h1>{escape(heading)}</h1>
{content}
</main>
</body>
</html>
"""
