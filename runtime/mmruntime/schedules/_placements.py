"""Placements: the submesh of each virtual stage, and which placements a named schedule is written for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


def round_robin(num_submeshes: int, chunks: int) -> tuple[int, ...]:
    """Stage s on submesh s % p: every submesh has one stage of each chunk of p stages."""
    return (*range(num_submeshes),) * chunks


def v_placement(num_submeshes: int) -> tuple[int, ...]:
    """Stages 0 to p-1 on submeshes 0 to p-1 and stages p to 2p-1 on submeshes p-1 to 0."""
    return (*range(num_submeshes), *reversed(range(num_submeshes)))


def renumbered(placement: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The placement with submeshes numbered in order of first use, and the old number of each new one."""
    used = tuple(dict.fromkeys(placement))
    return tuple(used.index(submesh) for submesh in placement), used


def check_placement(placement: Sequence[int], num_submeshes: int) -> tuple[int, ...]:
    """The placement as a tuple.

    Raises:
        ValueError: If it is empty or names a submesh that does not exist.
    """
    checked = tuple(placement) if isinstance(placement, Iterable) else ()
    if not checked or not all(isinstance(submesh, int) and 0 <= submesh < num_submeshes for submesh in checked):
        raise ValueError(
            f"placement must give each stage a submesh from 0 to {num_submeshes - 1} (num_stages is the number of "
            f"submeshes, {num_submeshes}); got {placement!r}."
        )
    return checked


@dataclass(frozen=True)
class PlacementRule:
    """The placements that a named schedule is written for.

    Attributes:
        pattern: `pattern(num_submeshes, chunks)` is the placement with `chunks` stages on each submesh, None if the
            schedule cannot have so many.
        description: The placements in the words of the documentation.
        needs: The pattern in the words of an error message; empty if any placement will do.
        hint: The argument of `mmruntime.stage`, and of the hint `stages`, that places layers so.
        chunks: Stages on each submesh if the user does not say.
        needs_chunks: The number of chunks in the words of an error message; empty if `needs` says enough.
    """

    pattern: Callable[[int, int], tuple[int, ...] | None]
    description: str
    needs: str = ""
    chunks: int = 1
    needs_chunks: str = ""
    hint: str = ""

    @property
    def takes_any(self) -> bool:
        """Whether any placement will do."""
        return not self.needs

    def allows(self, placement: Sequence[int]) -> bool:
        """Whether the placement follows the pattern, whatever the numbers of its submeshes."""
        if self.takes_any:
            return True
        # Schedules are written for submeshes 0, 1, ... in order of first use; a user's may have other numbers.
        shape, used = renumbered(placement)
        return shape == self.pattern(len(used), len(shape) // len(used))


ANY_PLACEMENT = PlacementRule(round_robin, "any placement")
ROUND_ROBIN = PlacementRule(
    round_robin,
    "v on each submesh, round-robin",
    needs="the round-robin placement, such as (0, 1, 0, 1)",
    hint="chunks=2",
)
V_SHAPED = PlacementRule(
    lambda num_submeshes, chunks: v_placement(num_submeshes) if chunks == 2 else None,
    "two on each submesh, in a V",
    needs=f"the V placement, such as {v_placement(2)}",
    chunks=2,
    needs_chunks="two chunks on every submesh",
    hint='placement="v"',
)
