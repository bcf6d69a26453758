"""Where the hints of a model axis may stand: expressions that the trace shows to have what such an axis may cut."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrewrite.source.spans import begins_its_line, span
from mmrewrite.suggest.candidates import statements_of
from mmrewrite.suggest.hint_trials import HintedProject, NewHint

# What has less of the operations of its layer's products is not worth a sum.
_LEAST = 0.05


@dataclass(frozen=True)
class ShardPlace:
    """A place of a hint `shard` that cuts one dimension over a model axis.

    Attributes:
        site: The place.
        dims: Of each dimension that the program sees there "cut", "rows" or "".
        divides: The number that the size of the axis must divide; 0 until that is known.
    """

    site: NewHint
    dims: tuple[str, ...]
    divides: int = 0

    def hint(self, name: str, rows: str | None) -> NewHint:
        """The hint, by the logical names of the dimension and of rows; without the latter nothing is said of these."""
        names = {"cut": f'"{name}"', "rows": "None" if rows is None else f'"{rows}"', "": "None"}
        until = self.dims.index("cut") + 1
        return replace(self.site, text=f"shard({', '.join(names[dim] for dim in self.dims[:until])})")


def shard_places(
    project: HintedProject, cuts: Sequence[Mapping[str, Any]], is_accepted: Callable[[ShardPlace], bool]
) -> list[ShardPlace]:
    """Places of hints that name all cuts of a document which can be named: comments first, and as few as will do.

    Args:
        project: The files.
        cuts: The cuts of all layers, with their expressions in these files.
        is_accepted: Whether a hint may stand.
    """
    wanted = {number for number, cut in enumerate(cuts) if cut["products"] >= _LEAST}
    ranks: dict[ShardPlace, int] = {}
    named: dict[ShardPlace, set[int]] = defaultdict(set)
    for number in sorted(wanted):
        for made in cuts[number]["places"]:
            for rank, place in _forms(project, made):
                ranks[place] = min(rank, ranks.get(place, rank))
                named[place].add(number)
    found = []
    for place in sorted(ranks, key=lambda each: (ranks[each], -len(named[each]), each.site.path, each.site.line)):
        if named[place] & wanted and is_accepted(place):
            found.append(place)
            wanted -= named[place]
    return found


def uncut_sentences(project: HintedProject, cuts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What could be cut, had it a place, by the expressions that make it."""
    found = {
        (str(each["path"]), int(each["around"][0]), str(each["text"])): int(cut["divides"])
        for cut in cuts
        if cut["products"] >= _LEAST and not cut["names"]
        for each in cut["made"][:1]
    }
    for (path, start, text), divides in sorted(found.items()):
        line = project.text(path).position(start)[0]
        code = ast.unparse(ast.parse(f"({text})", mode="eval"))
        yield f"{path}:{line}: `{code}` could be cut {divides}-fold, but no hint can stand inside of it"


def _forms(project: HintedProject, made: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, ShardPlace]]:
    """The comment above the statement whose value one of the expressions is, and the call around the innermost."""
    # Those around the innermost expression are of the same function.
    start, end = made[0]["around"]
    innermost = project.text(str(made[0]["path"])).text[start:end]
    for each in made:
        if "rows" not in each["dims"]:
            # A hint that does not name the examples would gather them.
            continue
        path, (start, end) = str(each["path"]), each["around"]
        source = project.text(path)
        sites = [
            (0, NewHint(path, statement.lineno, ""))
            for statement in statements_of(source)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return)
            and statement.value is not None
            and span(source, statement.value) == (start, end)
            and begins_its_line(source, statement)
        ]
        sites += [(1, NewHint(path, source.position(start)[0], "", (start, end)))] if each is made[0] else []
        for doubt, dims in enumerate(_seen(tuple(each["dims"]), int(each["mapped"]), innermost)):
            yield from ((rank + 2 * doubt, ShardPlace(site, dims)) for rank, site in sites)


def _seen(dims: tuple[str, ...], mapped: int, text: str) -> list[tuple[str, ...]]:
    """What a program sees of the dimensions of a value within `jax.vmap`s, the likeliest first.

    The trace does not show which of these are part of the expression, and so within it.
    """
    inside = text.partition("(")[0].count("vmap")
    counts = sorted(range(mapped + 1), key=lambda count: abs(count - max(mapped - inside, 0)))
    found = []
    for count in counts:
        left = list(dims)
        for _ in range(count):
            # Examples are mapped first, then what stands in front.
            away = "rows" if "rows" in left else ""
            if away not in left:
                break
            left.remove(away)
        if tuple(left) not in found:
            found.append(tuple(left))
    return found
