"""Write docs/sharding.md: what `modernize` makes of each member of `jax.sharding`, from the programs that test it.

python tools/make_sharding.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmrewrite.results import Rewrite  # noqa: E402
from tests.sharding_members import Member, members, modernized, said  # noqa: E402

PAGE = ROOT / "docs" / "sharding.md"
HEAD = """# Old `jax.sharding` on today's JAX

What `mmrewrite modernize` makes of code that uses a member of `jax.sharding`, as JAX documented that module until 0.6.
This page is made by `tools/make_sharding.py` from programs that the tests run, one for each row. Unless a row says that
the use is reported, the program gives on today's JAX what it gave on JAX 0.6.2, or for `PartitionSpec`, which was a
tuple there, on 0.4.13. Texts of meshes and specs (`repr`) differ.

A use that is *refused* does not mean today what it meant, or raises; one that is *noted* may mean something else. Both
are reported at their line, with these words.
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    rows = list(zip(members(), modernized(), strict=True))
    for owner in dict.fromkeys(member.owner for member, _ in rows):
        mine = [(member, result) for member, result in rows if member.owner == owner]
        setup = _shared_line([member for member, _ in mine])
        yield f"## `{owner}`\n"
        if setup is not None:
            yield f"{_setup(setup, mine)}\n"
        yield "| member | code | becomes |\n| --- | --- | --- |"
        for member, result in mine:
            name = member.name if " " in member.name else f"`{member.name}`"
            code = _marked(line for line in member.code.splitlines() if line != setup)
            cells = (name, code, _outcome(member, result, setup))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""


def _shared_line(members: Sequence[Member]) -> str | None:
    """The first line that most programs of a class have in common."""
    line, count = Counter(member.code.splitlines()[0] for member in members).most_common(1)[0]
    return line if count > 1 and line.startswith("sharding = ") else None


def _setup(line: str, rows: Sequence[tuple[Member, Rewrite]]) -> str:
    result = next(result for member, result in rows if line in member.code)
    lines = result.result.decode().splitlines()
    made = next(each for each in lines if each.startswith("sharding = "))
    return f"In rows that make none, `{line}`" + (", as it is." if made == line else f", which becomes `{made}`.")


def _outcome(member: Member, result: Rewrite, setup: str | None) -> str:
    """What becomes of the code of a row."""
    reasons = said(result)
    report = f"{'refused' if result.refusals else 'noted'}: {'; '.join(reasons)}" if reasons else ""
    old = set(member.source.splitlines())
    lines = [line for line in result.result.decode().splitlines() if line and line not in old]
    changed = [line for line in lines if not line.startswith(("from ", "import "))]
    if setup is not None and setup in old and setup not in result.result.decode():
        changed = [line for line in changed if not line.startswith("sharding = ")]
    return "<br>".join(part for part in (_marked(changed), report) if part) or "the same"


def _marked(lines: Iterable[str]) -> str:
    """Lines of code in a cell, without the name of the answer."""
    return "<br>".join(f"`{line.removeprefix('out = ')}`" for line in lines if line)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
