"""Namesakes: the parameter that a piece of state belongs to, by their places in the trees of the arguments.

What an optimizer keeps lies in trees like that of the parameters: `s[0].mu['net']['w']` beside `p['net']['w']`,
`state.opt_state[0].mu['w']` beside `state.params['w']`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from mmruntime._compat import Var
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._jaxpr.rewrite import needed

# A key in the user's name of an input: the argument, ['w'], [0] or .kernel; for a part of a stack its layers, in any
# dimension, as [0:2] or [:, 0:2].
_KEY = re.compile(r"\[[^\]]*\]|[^.\[]+")
_AROUND_KEY = "[]'\":, "


class Namesakes:
    """Finds parameters by the ends of their names.

    Args:
        names: The user's names for the inputs of a step.
        parameters: Those inputs that may be found.
    """

    def __init__(self, names: Mapping[Var, str], parameters: Iterable[Var]) -> None:
        self._keys = {var: tuple(key.strip(_AROUND_KEY) for key in _KEY.findall(name)) for var, name in names.items()}
        self._by_end: dict[tuple[str, ...], list[Var]] = defaultdict(list)
        for var in parameters:
            keys = self._keys[var]
            for first in range(len(keys)):
                self._by_end[keys[first:]].append(var)

    def of(self, var: Var) -> list[Var]:
        """The parameters whose names have the longest end in common with that of an input.

        Of several, these are the ones with most keys at the same places from the front, as `states[2][0]['w']` for
        `states[2][1]['w']`; of those the ones that have most other keys in common, too, and of those the ones of its
        shape.
        """
        keys = self._keys[var]
        ends = (keys[first:] for first in range(1, len(keys)))
        found = next((near for end in ends if (near := self._by_end.get(end))), [])
        shared = {each: _shared(keys, self._keys[each]) for each in found}
        found = [each for each in found if shared[each] == max(shared.values())]
        return [each for each in found if each.aval.shape == var.aval.shape] or found


def _shared(keys: tuple[str, ...], others: tuple[str, ...]) -> tuple[int, int]:
    """How many keys two names have in common at the same places from the front, and anywhere."""
    return sum(key == other for key, other in zip(keys, others, strict=False)), len(set(keys).intersection(others))


def read_before(step: Step, ends: Callable[[Op], bool]) -> set[Var]:
    """What some equations of a step read, and all that it is computed from.

    Args:
        step: The step.
        ends: Whether an equation is one of them.
    """
    found: set[Var] = set()
    for region in reversed(step.regions):
        found.update(result for total, result in region.sums if total in found)
        _, found = needed(region.ops, found, ends)
        found.update(stacked for piece, stacked in region.slices.items() if piece in found)
    return found


def computed_after(step: Step, made: Callable[[Op, set[Var]], Iterable[Var]], start: Iterable[Var] = ()) -> set[Var]:
    """Values of a step, and all that is computed from them.

    Args:
        step: The step.
        made: Which results of an equation are among them, or computed from those that are found before it.
        start: Values to begin with.
    """
    found = set(start)
    for region in step.regions:
        for op in region.ops:
            found.update(made(op, found))
        found.update(total for total, result in region.sums if result in found)
    return found
