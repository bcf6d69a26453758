"""Write docs/outputs: what the tool prints for the programs of the tutorial, and the README's picture, wide and narrow.

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
from typing import NamedTuple

from mmruntime import schedules

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "outputs"
TUTORIAL = ROOT / "examples" / "tutorial"
TRACKS = ("linen", "nnx", "equinox")

STYLE = """
text.code { font: {font}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
text.code { fill: #1f2328 }
text.title { font: 600 14px system-ui, sans-serif; fill: #1f2328 }
.paper { fill: #fff; stroke: #d0d7de }
.old { fill: #ffebe9 }
.new { fill: #dafbe1 }
@media (prefers-color-scheme: dark) {
  text.code, text.title { fill: #e6edf3 } .paper { fill: #0d1117; stroke: #30363d }
  .old { fill: #4b1b1e } .new { fill: #12361f }
}"""
LINE = 17


class Size(NamedTuple):
    """What a picture is drawn for: as wide as a README is shown, so that nothing is made smaller."""

    width: int
    margin: int
    # Of the code, and how many signs of it a line has.
    font: int
    columns: int


SIZES = {"picture": Size(760, 16, 12, 96), "picture-narrow": Size(358, 8, 11, 47)}


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
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TUTORIAL / "linen" / "train.py", folder)
        for name, size in SIZES.items():
            settings = f"[tool.ruff]\nline-length = {size.columns}\n"
            Path(folder, "pyproject.toml").write_text(settings, encoding="utf-8")
            made[f"{name}.svg"] = picture(mmrewrite(Path(folder), "diff", "train.py"), size)
    return made


def broken(line: str, columns: int) -> list[str]:
    """A line of the user's, in parts that fit."""
    found = []
    while len(line) > columns:
        place = max(line.rfind(" ", 0, columns), line.rfind("(", 0, columns)) + 1
        indent = " " * (len(line) - len(line.lstrip()) + (0 if found else 4))
        found.append(line[:place].rstrip())
        line = indent + line[place:]
    return [*found, line]


def lines_of(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff after the hunk of imports, without empty ones: what became of each, and its text."""
    lines = "".join(re.split(r"(?m)^(?=@@)", diff)[2:]).splitlines()[1:]
    return [("@", "...") if line.startswith("@@") else (line[0], line[1:]) for line in lines if line.strip("+- ")]


def picture(diff: str, size: Size) -> str:
    """One SVG: the hinted program, what it becomes, and the timeline of its step."""
    width, margin = size.width, size.margin
    # As `plan` draws it, in the width of the picture.
    timeline = schedules.svg(schedules.simulate(schedules.make("1f1b", 4, 4)), width=width - 2 * margin)
    parts = []
    first = ("You write three comments; mmrewrite diff", "shows the program that you merge")
    second = ("mmrewrite plan shows what each device", "will do, and when")
    heads = [head if width < 500 else (" ".join(head),) for head in (first, second)]
    y = 20 + 20 * len(heads[0])
    for mark, line in ((mark, part) for mark, whole in lines_of(diff) for part in broken(whole, size.columns)):
        if kind := {"-": "old", "+": "new"}.get(mark):
            parts.append(
                f'<rect class="{kind}" x="{margin}" y="{y - 12}" width="{width - 2 * margin}" height="{LINE}"/>'
            )
            parts.append(f'<text class="code" x="{margin + 4}" y="{y}">{mark}</text>')
        parts.append(f'<text class="code" x="{margin + 18}" y="{y}">{escape(line)}</text>')
        y += LINE
    found = re.search(r'width="(\d+)" height="(\d+)"', timeline)
    assert found is not None
    top = y + 12 + 20 * len(heads[1])
    drawn = timeline.strip().replace(found[0], f'x="{margin}" y="{top}" {found[0]}', 1)
    height = int(found[2]) + top + margin
    titles = (
        (at + 20 * number, text)
        for at, head in zip((16, y + 16), heads, strict=True)
        for number, text in enumerate(head)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-label="A program with three hints, what mmrewrite makes of it, and a timeline of its step">',
            f"<style>{STYLE.replace('{font}', str(size.font))}</style>",
            f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *(f'<text class="title" x="{margin}" y="{top + 4}">{title}</text>' for top, title in titles),
            *parts,
            drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in outputs().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
