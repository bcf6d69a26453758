"""One HTML page for pictures: it loads nothing, runs nothing, follows light and dark, and fits phones and paper."""

import base64
import hashlib
from html import escape

from mmruntime.schedules._drawing.svg import DARK_STYLE

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --quiet: #57606a; --line: #d0d7de; --band: #f4f4f4;
  --focus: #0550ae; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --quiet: #9da7b1; --line: #3d444d; --band: #161b22; --focus: #79b8ff; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1400px; padding: 0 clamp(.8rem, 3vw, 1.5rem); overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: .2rem 0 .6rem; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--quiet); }
.wide { overflow-x: auto; }
.wide > svg { display: block; }
.wide:focus-visible, summary:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
pre { overflow-x: auto; background: var(--band); padding: .8rem; }
@media print { body { margin: 0; max-width: none; } .wide > svg { width: 100%; height: auto; } }
""".strip()


def document(title: str, body: str, style: str = "") -> str:
    """The page, as text.

    Args:
        title: Its title and first heading, as plain text.
        body: What follows the heading, as HTML without style attributes.
        style: Rules besides those for text, tables and pictures.
    """
    sheet = f"\n{_STYLE}\n{DARK_STYLE}\n{style}\n"
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{sheet}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
</body>
</html>
"""


def scrolling(picture: str, label: str) -> str:
    """A wide picture in a box that scrolls by itself, also by keyboard."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">{picture}</div>'
