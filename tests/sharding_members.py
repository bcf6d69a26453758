"""Programs that use the members of `jax.sharding`, what `modernize` makes of each, and what it gave on older JAX.

The answers in `sharding_members.jsonl` were made by JAX 0.6.2, the last release with all of these classes, and those of
`PartitionSpec` by JAX 0.4.13, where it was a tuple; each row says which. `raises` stands for no answer.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import Rewrite

_ROWS = Path(__file__).with_name("sharding_members.jsonl")
_LINES_BEFORE = 4


@dataclass(frozen=True)
class Member:
    """A program that uses one member of a class, and ends in `out = ...`.

    Attributes:
        owner: The class.
        name: The member, or how the class is used.
        source: The program.
        old: The `repr` of `out` on older JAX.
    """

    owner: str
    name: str
    source: str
    old: str

    @property
    def code(self) -> str:
        """The lines that use the member."""
        return "\n".join(self.source.splitlines()[_LINES_BEFORE + 2 :])


@functools.cache
def members() -> tuple[Member, ...]:
    """All programs, by class."""
    found = []
    for line in _ROWS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        head = f"import jax\nimport jax.numpy as jnp\nimport numpy as np\n{row['imports']}\n\n"
        source = f"{head}grid = np.array(jax.devices()).reshape(4, 2)\n{row['code']}\n"
        found.append(Member(row["class"], row["member"], source, row["old"]))
    return tuple(found)


@functools.cache
def modernized() -> tuple[Rewrite, ...]:
    """What `mmrewrite modernize` makes of each program by itself, in the order of `members`."""
    codemods = ModernizeRegistry()
    found: list[Rewrite] = []
    for member in members():
        file = SourceFile("program.py", member.source.encode(), "program", False)
        found += modernize_project([file], codemods, load=lambda _: None, settings=ModernizeSettings())
    return tuple(found)


def said(result: Rewrite) -> tuple[str, ...]:
    """What is reported of a program, each once."""
    return tuple(dict.fromkeys([item.reason for item in (*result.refusals, *result.left)]))
