"""The schedules that have a name."""

import difflib
from collections.abc import Callable, Iterable, Sequence

from ._action import Action, Rows
from ._algorithms.breadth_first import fill_drain
from ._algorithms.dualpipe import dualpipe, dualpipe_v
from ._algorithms.interleaved import interleaved
from ._algorithms.one_forward_one_backward import one_forward_one_backward
from ._algorithms.v_shaped import v_half, v_min, zb_v
from ._algorithms.wavefront import visits, waves
from ._algorithms.zero_bubble import zb_h1, zb_h2
from ._placements import v_placement
from ._schedule import Schedule

_ALIASES = {
    "fill-drain": "gpipe",
    "breadth-first": "gpipe",
    "prefetch-wavefront": "wavefront",
}


# Orders for any placement: (placement, submeshes, microbatches) -> rows.
_ANY_PLACEMENT: dict[str, Callable[[Sequence[int], int, int], Rows]] = {
    "gpipe": fill_drain,
    "1f1b": one_forward_one_backward,
    "looped-bfs": fill_drain,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
}
# What one microbatch goes through in the orders that are waves over any placement.
_WAVES = {"wavefront": "FB", "zero-bubble-h2": "FIW"}
# Orders for the V placement: (submeshes, microbatches) -> rows.
_V_SHAPED: dict[str, Callable[[int, int], Rows]] = {"zb-v": zb_v, "v-half": v_half, "v-min": v_min}
_NAMES = (
    "gpipe",
    "1f1b",
    "wavefront",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
    "dualpipe",
    "zero-bubble-h2",
)


def names() -> tuple[str, ...]:
    """The canonical names that `make` knows, apart from `"auto"`."""
    return _NAMES


def canonical_name(name: str) -> str:
    """The canonical one of a name or alias.

    Raises:
        ValueError: If there is no such schedule. The text lists the names and the nearest one.
    """
    known = (*_NAMES, *_ALIASES, "auto")
    if name not in known:
        near = difflib.get_close_matches(str(name).lower(), known, n=1)
        raise ValueError(
            f"Unknown schedule {name!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + f" Known schedules: {', '.join(sorted(known))}."
        )
    return _ALIASES.get(name, name)


def check_sizes(num_submeshes: int, num_microbatches: int, chunks: int | None) -> None:
    """Raise ValueError unless all are whole numbers of at least 1 (chunks may be None)."""
    numbers = {"num_stages": num_submeshes, "num_microbatches": num_microbatches}
    if chunks is not None:
        numbers["chunks"] = chunks
    for what, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{what} must be a whole number of at least 1; got {number!r}.")


def placements(num_submeshes: int, chunks: int | None, placement: Sequence[int] | None) -> tuple[tuple[int, ...], ...]:
    """The placement that is asked for; without one, round-robin, and for two chunks also the V.

    Raises:
        ValueError: If the placement names a submesh that does not exist.
    """
    if placement is None:
        round_robin = (*range(num_submeshes),) * (chunks or 1)
        return (round_robin, v_placement(num_submeshes)) if chunks == 2 and num_submeshes > 1 else (round_robin,)
    home = tuple(placement) if isinstance(placement, Iterable) else ()
    if not home or not all(isinstance(submesh, int) and 0 <= submesh < num_submeshes for submesh in home):
        raise ValueError(
            f"placement must give each stage a submesh from 0 to {num_submeshes - 1} (num_stages is the number of "
            f"submeshes, {num_submeshes}); got {placement!r}."
        )
    return (home,)


def suits(name: str, home: tuple[int, ...]) -> bool:
    """Whether the schedule with this canonical name can have this placement, replicas besides."""
    if name in _ANY_PLACEMENT or name in _WAVES:
        return True
    # Written for submeshes 0, 1, ... in the order of their first stages; here they may have other numbers.
    used = tuple(dict.fromkeys(home))
    if name == "dualpipe":
        return home == used
    if name in _V_SHAPED or name == "dualpipe-v":
        pattern = v_placement(len(used))
    else:
        pattern = (*range(len(used)),) * (len(home) // len(used))
    return home == tuple(used[submesh] for submesh in pattern)


def named(
    name: str,
    num_submeshes: int,
    num_microbatches: int,
    chunks: int | None = None,
    *,
    placement: Sequence[int] | None = None,
    delay: int | None = None,
) -> Schedule:
    """The schedule with this name; see `make`."""
    check_sizes(num_submeshes, num_microbatches, chunks)
    wants_v = name in _V_SHAPED or name == "dualpipe-v"
    anywhere = ", ".join((*_ANY_PLACEMENT, *_WAVES))
    if placement is None and wants_v:
        if chunks not in (None, 2):
            raise ValueError(
                f"{name} has two chunks on every submesh; got {chunks=}. Leave chunks out, or choose one of {anywhere}."
            )
        home = v_placement(num_submeshes)
    else:
        home = placements(num_submeshes, chunks, placement)[0]
    if delay is not None and name not in _WAVES:
        raise ValueError(f"delay is for {' and '.join(_WAVES)} only; {name} has no groups to delay.")
    if not suits(name, home):
        shape = (
            f"the V placement, such as {v_placement(2)}"
            if wants_v
            else "one stage on each submesh, such as (0, 1)"
            if name == "dualpipe"
            else "the round-robin placement, such as (0, 1, 0, 1)"
        )
        raise ValueError(
            f"{name} needs {shape}; got {home}. Place the stages like that, or choose one of {anywhere} or auto, which "
            "take any placement."
        )
    fused: frozenset[Action] = frozenset()
    replicas: tuple[tuple[int, ...], ...] = ()
    if name in _ANY_PLACEMENT:
        rows = _ANY_PLACEMENT[name](home, num_submeshes, num_microbatches)
    elif name in _WAVES:
        path = visits(len(home), _WAVES[name])
        rows = waves(path, home, num_submeshes, num_microbatches, len(home) if delay is None else delay)
    else:
        used = tuple(dict.fromkeys(home))
        if name == "dualpipe-v":
            parts, fused = dualpipe_v(len(used), num_microbatches)
        elif name == "dualpipe" and len(used) > 1:
            parts, fused = dualpipe(len(used), num_microbatches)
            if num_microbatches > 1:
                pairs = zip(used, reversed(used), strict=True)
                replicas = tuple((back,) if back != submesh else () for submesh, back in pairs)
        elif wants_v:
            parts = _V_SHAPED[name](len(used), num_microbatches)
        elif len(home) == len(used):
            # One chunk leaves nothing to interleave, and the formula would warm up like the eager order. (One submesh
            # has only one end for dualpipe's microbatches to come from.)
            parts = one_forward_one_backward(range(len(used)), len(used), num_microbatches)
        else:
            parts = interleaved(len(used), num_microbatches, len(home) // len(used))
        row_of = dict(zip(used, parts, strict=True))
        rows = tuple(row_of.get(submesh, ()) for submesh in range(num_submeshes))
    return Schedule(name, rows, home, len(home), num_microbatches, fused, replicas)
