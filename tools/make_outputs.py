"""Write docs/outputs: what the tool prints for the programs of the tutorial, and the picture of the README.

python tools/make_outputs.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from mmruntime import schedules

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "outputs"
TUTORIAL = ROOT / "examples" / "tutorial"
TRACKS = ("linen", "nnx", "equinox")

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
# As wide as a README is shown, so that nothing is made smaller.
WIDTH, MARGIN, LINE, COLUMNS = 760, 16, 17, 96


def mmrewrite(folder: Path, *arguments: str) -> str:
    """What a command prints in a folder, whatever its exit status means."""
    command = [sys.executable, "-m", "mmrewrite", *arguments]
    environment = {**os.environ, "MMREWRITE_CACHE_DIR": "", "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def outputs() -> dict[str, str]:
    """Name and text of each file."""
    diffs = {track: mmrewrite(TUTORIAL / track, "diff", "train.py") for track in TRACKS}
    made = {f"{track}.diff": re.sub(r"([ab])/examples/tutorial/\w+/", r"\1/", diff) for track, diff in diffs.items()}
    made["plan.txt"] = mmrewrite(TUTORIAL / "linen", "plan", "train.py")
    # As `plan` draws it, in the width of the picture.
    timeline = schedules.svg(schedules.simulate(schedules.make("1f1b", 4, 4)), width=WIDTH - 2 * MARGIN)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TUTORIAL / "linen" / "train.py", folder)
        Path(folder, "pyproject.toml").write_text(f"[tool.ruff]\nline-length = {COLUMNS}\n", encoding="utf-8")
        made["picture.svg"] = picture(mmrewrite(Path(folder), "diff", "train.py"), timeline)
    return made


def lines_of(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff after the hunk of imports, without empty ones: what became of each, and its text."""
    lines = "".join(re.split(r"(?m)^(?=@@)", diff)[2:]).splitlines()[1:]
    return [("@", "...") if line.startswith("@@") else (line[0], line[1:]) for line in lines if line.strip("+- ")]


def picture(diff: str, timeline: str) -> str:
    """One SVG: the hinted program, what it becomes, and the timeline of its step."""
    parts = []
    y = MARGIN + 24
    for mark, line in lines_of(diff):
        assert len(line) <= COLUMNS, line
        if kind := {"-": "old", "+": "new"}.get(mark):
            parts.append(
                f'<rect class="{kind}" x="{MARGIN}" y="{y - 12}" width="{WIDTH - 2 * MARGIN}" height="{LINE}"/>'
            )
            parts.append(f'<text class="code" x="{MARGIN + 4}" y="{y}">{mark}</text>')
        parts.append(f'<text class="code" x="{MARGIN + 18}" y="{y}">{escape(line)}</text>')
        y += LINE
    found = re.search(r'width="(\d+)" height="(\d+)"', timeline)
    assert found is not None
    top = y + 2 * MARGIN
    drawn = timeline.strip().replace(found[0], f'x="{MARGIN}" y="{top}" {found[0]}', 1)
    height = int(found[2]) + top + MARGIN
    titles = (
        (MARGIN, "You write three comments; mmrewrite diff shows the program that you merge"),
        (y + MARGIN, "mmrewrite plan shows what each device will do, and when"),
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-label="A program with three hints, what mmrewrite makes of it, and a timeline of its step">',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *(f'<text class="title" x="{MARGIN}" y="{top + 4}">{title}</text>' for top, title in titles),
            *parts,
            drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in outputs().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
