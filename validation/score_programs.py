"""Build cases for `score_annotate.py` from training programs of public repositories, with hints and no other edit.

    python validation/score_programs.py FOLDER --clones CLONES [--only NAME]
    python validation/score_annotate.py FOLDER

CLONES holds a git repository for each that is asked for, CLONES/OWNER+NAME or CLONES/OWNER/NAME. Every file in
`public_programs` says which files of one repository a program is, at which commit, and

    sizes = [["was", "is"], ...]    # text that is replaced: sizes, the number of rows, the dropout that is switched off
    without = [14, ...]             # cells of a notebook that are left out, such as one that shows an error
    [[hints]]                       # the hints: `comment` at the end of `line`, or `at` "above" it, or "decorator", the
                                    # end of the line before it
    prepare = "..."                 # what stands in for data sets and for packages that are not installed
    [score]                         # the rest of the case's `score.toml`
    [variants.NAME]                 # further cases, which differ in what is said here

No code of the programs is in this repository, but for the lines that are named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("public_programs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clones", type=Path, required=True, help="a folder with the repositories")
    parser.add_argument("--only", help="name of one program")
    options = parser.parse_args()
    for path in sorted(PROGRAMS.glob("*.toml")):
        if options.only in (None, path.stem):
            for name, told in variants(path.stem, tomllib.loads(path.read_text())):
                build(told, options.folder / name, options.clones)
    return 0


def variants(name: str, told: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The cases of a program, by name: it as it is told, then its variants."""
    cases = [(name, told)]
    for variant, changes in told.get("variants", {}).items():
        merged = {**told, **changes, "score": {**told["score"], **changes.get("score", {})}}
        if "more_sizes" in changes:
            merged["sizes"] = [*told.get("sizes", []), *changes["more_sizes"]]
        cases.append((f"{name}-{variant}", merged))
    return cases


def build(told: dict[str, Any], case: Path, clones: Path) -> None:
    """Write one case.

    Raises:
        ValueError: If text that is to be replaced, or a line that is to be hinted, is not there.
    """
    sources = {
        place: source(clones, told["repository"], told["commit"], path, told.get("without", []))
        for path, place in told["files"].items()
    }
    for was, becomes in told.get("sizes", []):
        if not any(was in text for text in sources.values()):
            raise ValueError(f"{case.name}: no {was!r} in its sources")
        sources = {place: text.replace(was, becomes) for place, text in sources.items()}
    for hint in told["hints"]:
        place = hint.get("file", next(iter(sources)))
        sources[place] = hinted(sources[place], hint, case.name)
    for place, text in sources.items():
        (case / place).parent.mkdir(parents=True, exist_ok=True)
        (case / place).write_text(text)
    if "prepare" in told:
        (case / "prepare.py").write_text(told["prepare"])
    score = {"title": told["title"], "expect": "rewritten", **told["score"]}
    (case / "score.toml").write_text("".join(f"{key} = {toml(value)}\n" for key, value in score.items()))


def source(clones: Path, repository: str, commit: str, path: str, without: list[int]) -> str:
    """The text of a file at a commit; of a notebook its code cells, one after the other."""
    owner, _, name = repository.partition("/")
    places = [clones / f"{owner}+{name}" / "repo", clones / f"{owner}+{name}", clones / owner / name]
    place = next((each for each in places if each.is_dir()), places[-1])
    command = ["git", "-C", str(place), "show", f"{commit}:{path}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if not path.endswith(".ipynb"):
        return text
    cells = enumerate(json.loads(text)["cells"])
    codes = ["".join(cell["source"]) for number, cell in cells if cell["cell_type"] == "code" and number not in without]
    lines = "\n\n".join(codes).split("\n")
    return "\n".join(line for line in lines if not line.startswith(("%", "!"))) + "\n"


def hinted(text: str, hint: dict[str, Any], case: str) -> str:
    """The text with a comment at the line that a hint names, or above it.

    Raises:
        ValueError: If there is no such line.
    """
    lines, found = text.split("\n"), False
    for number, line in enumerate(lines):
        if line.strip() == hint["line"] and not found:
            indent = line[: len(line) - len(line.lstrip())]
            comment = f"# mm: {hint['comment']}"
            match hint.get("at", "end"):
                case "above":
                    lines[number] = f"{indent}{comment}\n{line}"
                case "decorator":
                    lines[number - 1] += f"  {comment}"
                case _:
                    lines[number] += f"  {comment}"
            found = True
    if not found:
        raise ValueError(f"{case}: no line {hint['line']!r}")
    return "\n".join(lines)


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
