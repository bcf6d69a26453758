"""Compare all plans of a step, and say whether a pipeline pays."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from mmrewrite.directives.schedule_names import IN_TURNS
from mmrewrite.suggest.model import CostModel, PlanChoice, Priced
from mmruntime import schedules

# Plans closer than this are taken for equal, and the simplest wins; closer than the other is within the model's error.
SAME, ERROR = 0.02, 0.1
# One device is enough for what lasts no longer than so many calls.
_FEW_LAUNCHES = 5
_MOST_ACTIONS = 20000
# How many times as many devices are looked at where nothing fits.
_MORE = (2, 4, 8)


@dataclass(frozen=True)
class FixedChoices:
    """The parts of a plan that are fixed; None for what is free."""

    stages: int | None = None
    data: int | None = None
    model: int | None = None
    count: int | None = None
    schedule: str | None = None

    def said(self) -> str:
        """The choices as options, for messages."""
        names = {"count": "microbatches"}
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return " ".join(f"--{names.get(name, name)} {value}" for name, value in given.items() if value is not None)


FREE = FixedChoices()


@dataclass(frozen=True)
class Plain:
    """A plan for `jax.jit` alone, with microbatches, its price and a model axis.

    With FSDP, `shards` neighbouring devices of the data axis have a part of the state each.
    """

    devices: int
    count: int
    seconds: float
    memory: float
    model: int = 1
    shards: int = 1

    @property
    def kind(self) -> str:
        """What it is: "one device", "data" or "fsdp"."""
        return "one device" if self.devices == 1 else "data" if self.shards == 1 else "fsdp"

    @property
    def data(self) -> int:
        """The devices of the data axis."""
        return self.devices // self.model


@dataclass(frozen=True)
class ComparedPlans:
    """What a search has found.

    Attributes:
        verdict: "one", "plain", "pipeline" or "nothing".
        best: The best pipeline that fits, if any does.
        plain: The best plain plan that fits, if any does.
        others: The best pipeline of each other mesh, the fastest first; those that do not fit come last.
        priced: How many plans were simulated.
        needs: Where nothing fits, with how many devices something does, if that is known.
        is_bounded: Whether memory decides: a plan that does not fit is faster by more than the model's error.
    """

    verdict: str
    best: Priced | None
    plain: Plain | None
    others: tuple[Priced, ...]
    priced: int
    needs: int | None = None
    is_bounded: bool = False


def shapes(
    model: CostModel, devices: int, held: int, *, data: bool, fixed: FixedChoices = FREE
) -> Iterator[tuple[int, int, int, int]]:
    """Stages, devices of the data axis and of the model axis, and microbatches, which divide what they must."""
    for stages, cut in itertools.product(range(2, min(len(model.layers), devices // held) + 1), model.models()):
        if devices % (stages * held * cut) or fixed.stages not in (None, stages) or fixed.model not in (None, cut):
            continue
        width = devices // stages // held // cut
        if (width > 1 and not data) or fixed.data not in (None, width):
            continue
        for count in range(1, model.batch + 1):
            if fixed.count not in (None, count):
                continue
            if model.batch % count == 0 and (model.batch // count) % width == 0:
                yield stages, width, cut, count


@functools.lru_cache(maxsize=4096)
def named(name: str, stages: int, count: int, chunks: int) -> schedules.Schedule | None:
    """A named schedule; None where it does not suit these sizes."""
    if chunks == 1 and name in IN_TURNS:
        return None
    try:
        made = schedules.make(name, stages, count, None if chunks == 1 else chunks)
    except ValueError:
        return None
    fits = made.num_stages == stages * chunks and not made.replicas
    return made if fits else None


def find_plans(
    model: CostModel,
    devices: int,
    held: int,
    *,
    data: bool,
    fixed: FixedChoices = FREE,
    is_exhaustive: bool = False,
    below: float = math.inf,
) -> ComparedPlans:
    """The plans for so many devices, and a searched order for the best; where none fits, how many devices it takes.

    With `below`, those of which no bound says that they take longer.
    """
    found = _compared(model, devices, held, data=data, fixed=fixed, is_exhaustive=is_exhaustive, below=below)
    if found.best is not None and fixed.schedule in (None, schedules.AUTO) and not model.recomputes:
        searched = model.searched(found.best, model.device.room)
        is_better = searched is not None and searched.seconds < found.best.seconds * (1 - SAME)
        if searched is not None and searched.memory <= model.device.room and (is_better or fixed.schedule is not None):
            return replace(found, best=searched, verdict=_verdict(model, searched, found.plain, fixed))
    if found.verdict != "nothing" or below < math.inf:
        return found
    more = (times * devices for times in _MORE)
    needs = next((each for each in more if _fits(model, each, held, data=data)), None)
    return replace(found, needs=needs)


def _fits(model: CostModel, devices: int, held: int, *, data: bool) -> bool:
    return _compared(model, devices, held, data=data, fixed=FREE).verdict != "nothing"


def _compared(
    model: CostModel,
    devices: int,
    held: int,
    *,
    data: bool,
    fixed: FixedChoices,
    is_exhaustive: bool = False,
    below: float = math.inf,
) -> ComparedPlans:
    """The plans with named schedules; the first place is that of an exhaustive search.

    Args:
        model: Prices them.
        devices: How many accelerators.
        held: How many of them the other axes of the mesh take.
        data: Whether rows can be cut over a data axis.
        fixed: What the plans must have.
        is_exhaustive: Whether to simulate all plans, for tests.
        below: Plans are not looked at whose bound is above so many seconds.
    """
    room = model.device.room
    table: dict[tuple[int, int, int], Priced] = {}
    ordered = sorted(
        (model.bound(stages, width, held, cut, count), (stages, width, cut), count)
        for stages, width, cut, count in shapes(model, devices, held, data=data, fixed=fixed)
    )
    best: Priced | None = None
    fitting: list[Priced] = []
    too_large = math.inf
    priced = 0
    names = schedules.names() if fixed.schedule in (None, schedules.AUTO) else (fixed.schedule,)
    for bound, mesh, count in ordered:
        if bound > below:
            break
        # What cannot be first is looked at once for each mesh, for the table.
        is_late = best is not None and bound > best.seconds * (1 + SAME) and not is_exhaustive
        if is_late and mesh in table:
            continue
        stages, width, cut = mesh
        for chunks in (1, 2, 4):
            if stages * chunks > len(model.layers) or 6 * stages * chunks * count > _MOST_ACTIONS:
                continue
            even = PlanChoice(stages, width, held, count, "", chunks, model=cut)
            choices = [even, replace(even, by_cost=True)]
            if model.parts(even, stages * chunks) == model.parts(choices[1], stages * chunks):
                choices = [even]
            for name in names:
                made = named(name, stages, count, chunks)
                if made is None or (model.recomputes and made.splits_backward):
                    continue
                for choice in choices[-1:] if is_late else choices:
                    found = model.price(replace(choice, schedule=name), made)
                    priced += 1
                    known = table.get(mesh)
                    if known is None or _order(found, room) < _order(known, room):
                        table[mesh] = found
                    if found.memory <= room:
                        fitting.append(found)
                        if best is None or found.seconds < best.seconds:
                            best = found
                    else:
                        too_large = min(too_large, found.seconds)
    if best is not None:
        limit = best.seconds * (1 + SAME)
        best = min((each for each in fitting if each.seconds <= limit), key=_simplicity)
    plain = best_plain(model, devices)
    others = sorted(
        (each for key, each in table.items() if best is None or key != _mesh(best.choice)),
        key=lambda each: _order(each, room),
    )
    is_bounded = too_large < math.inf if best is None else too_large < best.seconds * (1 - ERROR)
    verdict = _verdict(model, best, plain, fixed)
    return ComparedPlans(verdict, best, plain, tuple(others), priced, is_bounded=is_bounded)


def best_plain(model: CostModel, devices: int) -> Plain | None:
    """The best plan without stages that fits."""
    found = []
    for number, cut in [(1, 1), *((devices, cut) for cut in model.models() if devices % cut == 0)]:
        width = number // cut
        within = {link.devices // cut for link in model.device.links}
        for shards in sorted({1, width, *(each for each in within if 1 < each < width and width % each == 0)}):
            for count in range(1, model.batch + 1):
                if model.batch % count or (model.batch // count) % width:
                    continue
                seconds, memory = model.plain(width, count, shards=shards, model=cut)
                if memory <= model.device.room:
                    found.append(Plain(number, count, seconds, memory, cut, shards))
    if not found:
        return None
    fastest = min(each.seconds for each in found)
    best = min(
        (each for each in found if each.seconds <= fastest * (1 + SAME)),
        key=lambda each: (each.model > 1, each.shards > 1, each.shards < each.data, each.seconds),
    )
    alone = min((each for each in found if each.devices == 1), key=lambda each: each.seconds, default=None)
    return alone if alone is not None and _will_do(model, alone, best.seconds) else best


def _will_do(model: CostModel, alone: Plain, seconds: float) -> bool:
    """Whether nobody would use several devices for what these make of a step: too little, or of too short a one."""
    return alone.seconds <= 1.2 * seconds or alone.seconds < _FEW_LAUNCHES * model.device.launch


def _order(priced: Priced, room: float) -> tuple[bool, float]:
    return priced.memory > room, priced.seconds if priced.memory <= room else priced.memory


def _mesh(choice: PlanChoice) -> tuple[int, int, int]:
    return choice.stages, choice.data, choice.model


def _simplicity(priced: Priced) -> tuple[object, ...]:
    choice = priced.choice
    names = schedules.names()
    rank = names.index(choice.schedule) if choice.schedule in names else len(names)
    axes = (choice.data > 1) + (choice.model > 1)
    return axes, choice.chunks, rank, choice.by_cost, priced.memory, choice.stages, choice.model, choice.count


def _verdict(model: CostModel, best: Priced | None, plain: Plain | None, fixed: FixedChoices) -> str:
    if best is None and (plain is None or fixed.stages is not None):
        return "nothing"
    if plain is None or fixed.stages is not None:
        return "pipeline"
    if plain.devices == 1:
        return "one" if best is None or _will_do(model, plain, best.seconds) else "pipeline"
    return "plain" if best is None or best.seconds > plain.seconds * (1 - ERROR) else "pipeline"
