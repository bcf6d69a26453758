"""Write docs/outputs: what the tool prints for the programs of the tutorial, and the picture of the README.

python tools/make_outputs.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "outputs"
TUTORIAL = ROOT / "examples" / "tutorial"
TRACKS = ("linen", "nnx", "equinox")
# A batch of 64 in microbatches of 16.
PLAN = ("plan", "train.py", "--microbatches", "4")

STYLE = """
text.code { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328 }
text.title { font: 600 14px system-ui, sans-serif; fill: #1f2328 }
.paper { fill: #fff; stroke: #d0d7de }
.old { fill: #ffebe9 }
.new { fill: #dafbe1 }
@media (prefers-color-scheme: dark) {
  text.code, text.title { fill: #e6edf3 } .paper { fill: #0d1117; stroke: #30363d }
  .old { fill: #4b1b1e } .new { fill: #12361f }
}"""
WIDTH, MARGIN, LINE, MIDDLE = 1340, 16, 17, 560


def mmrewrite(folder: Path, *arguments: str) -> str:
    """What a command prints in a folder, whatever its exit status means."""
    command = [sys.executable, "-m", "mmrewrite", *arguments]
    environment = {**os.environ, "MMREWRITE_CACHE_DIR": "", "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def outputs() -> dict[str, str]:
    """Name and text of each file."""
    diffs = {track: mmrewrite(TUTORIAL / track, "diff", "train.py") for track in TRACKS}
    made = {f"{track}.diff": re.sub(r"([ab])/examples/tutorial/\w+/", r"\1/", diff) for track, diff in diffs.items()}
    made["plan.txt"] = mmrewrite(TUTORIAL / "linen", *PLAN)
    timeline = mmrewrite(TUTORIAL / "linen", *PLAN, "--format", "svg")
    made["picture.svg"] = picture(diffs["linen"], timeline)
    return made


def sides(diff: str) -> list[tuple[list[str], list[str], bool]]:
    """The hunks of a diff after its imports, in runs: lines of the left, lines of the right, whether they differ."""
    runs: list[tuple[list[str], list[str], bool]] = []
    for line in diff[diff.index("\n WIDTH") + 1 :].splitlines():
        if not line.strip():
            continue
        mark, text = ("@", "...") if line.startswith("@@") else (line[0], line[1:])
        changed = mark in "+-"
        if not runs or runs[-1][2] != changed:
            runs.append(([], [], changed))
        if mark != "+":
            runs[-1][0].append(text)
        if mark != "-":
            runs[-1][1].append(text)
    return runs


def picture(diff: str, timeline: str) -> str:
    """One SVG: the hinted program, what it becomes, and the timeline of its step."""
    parts = []
    y = MARGIN + 24
    for left, right, changed in sides(diff):
        height = LINE * max(len(left), len(right))
        if changed:
            middle = f'y="{y - 12}" height="{height}"'
            parts.append(f'<rect class="old" x="{MARGIN}" width="{MIDDLE - 2 * MARGIN}" {middle}/>')
            parts.append(f'<rect class="new" x="{MIDDLE}" width="{WIDTH - MIDDLE - MARGIN}" {middle}/>')
        for x, lines in ((MARGIN + 8, left), (MIDDLE + 8, right)):
            parts += [
                f'<text class="code" x="{x}" y="{y + LINE * row}">{escape(line)}</text>'
                for row, line in enumerate(lines)
            ]
        y += height
    found = re.search(r'width="(\d+)" height="(\d+)"', timeline)
    assert found is not None
    width, top = WIDTH - 2 * MARGIN, y + 2 * MARGIN
    height = int(found[2]) * width // int(found[1])
    drawn = timeline.strip().replace(found[0], f'x="{MARGIN}" y="{top}" width="{width}" height="{height}"', 1)
    height += top + MARGIN
    titles = (
        (MARGIN + 8, MARGIN, "You write four comments"),
        (MIDDLE + 8, MARGIN, "mmrewrite diff shows the program that you merge"),
        (MARGIN + 8, y + MARGIN, "mmrewrite plan shows what each device will do, and when"),
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-label="A program with four hints, what mmrewrite makes of it, and a timeline of its step">',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *(f'<text class="title" x="{x}" y="{top + 4}">{title}</text>' for x, top, title in titles),
            *parts,
            drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in outputs().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
