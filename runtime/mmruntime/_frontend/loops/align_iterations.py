"""Make one loop body out of the traces of its iterations, which differ in numbers and arrays only.

A literal or array that differs between iterations becomes an operand with one slice per iteration. An equation whose
parameters differ, such as the bounds of a slice, is evaluated before the loop, once per iteration, and its result
becomes such an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._core.marks import is_marked
from mmruntime._jaxpr.canonical_forms import parameters
from mmruntime._jaxpr.carry import Addend
from mmruntime._jaxpr.rewrite import needed


@dataclass(frozen=True, eq=False)
class Iteration:
    """One traced iteration.

    Attributes:
        jaxpr: An open jaxpr, the pattern for building others.
        eqns: The equations that its addends are computed from, in order.
        values: The values of its closed-over variables.
        addends: For each sum, what the iteration adds to it.
        avals: The abstract value of each sum.
    """

    jaxpr: Any
    eqns: list[Any]
    values: dict[Any, Any]
    addends: list[tuple[Addend, ...]]
    avals: list[Any]


def align(iterations: Sequence[Iteration], label: str) -> tuple[Callable[[Any], list[Any]], list[Any]]:
    """One body for all iterations.

    Args:
        iterations: Their traces.
        label: What messages call the loop.

    Returns:
        A function from one slice of each operand to the addend of each sum, and the operands, stacked along their first
        dimension.

    Raises:
        ValueError: If the iterations are not the same computation.
    """
    return _Aligner(iterations, label).run()


@dataclass(eq=False)
class _Aligner:
    iterations: Sequence[Iteration]
    label: str
    # For each iteration, its variables and their counterparts in the last iteration.
    names: list[dict[Any, Any]] = field(default_factory=list)
    operands: dict[Hashable, tuple[Any, list[Any]]] = field(default_factory=dict)
    constants: dict[Any, Any] = field(default_factory=dict)

    @property
    def indices(self) -> range:
        """Numbers of the iterations."""
        return range(len(self.iterations))

    def run(self) -> tuple[Callable[[Any], list[Any]], list[Any]]:
        self.names = [{} for _ in self.indices]
        rows = self.rows()
        tainted = self.evaluate_early(rows)
        eqns = []
        for position, row in enumerate(rows):
            if position not in tainted:
                atoms = zip(*(eqn.invars for eqn in row), strict=True)
                eqns.append(row[-1].replace(invars=[self.operand(each) for each in atoms]))
        last = self.iterations[-1]
        sums = [
            [Addend(self.operand([one.atom for one in each]), each[-1].sign) for each in zip(*addends, strict=True)]
            for addends in zip(*(iteration.addends for iteration in self.iterations), strict=True)
        ]
        results = [addend.atom for addends in sums for addend in addends]
        sliced = [var for var, _ in self.operands.values()]
        compute = _compat.as_fun(_compat.close(last.jaxpr, [*self.constants, *sliced], results, eqns))

        def once(slices: Sequence[Any]) -> list[Any]:
            values = iter(compute(*self.constants.values(), *slices))
            return [
                _sum([(next(values), addend.sign) for addend in addends], aval.shape)
                for addends, aval in zip(sums, last.avals, strict=True)
            ]

        return once, [_stacked(values, var.aval.dtype) for var, values in self.operands.values()]

    def rows(self) -> list[tuple[Any, ...]]:
        """For each equation of the body, its counterparts in all iterations. Refuses iterations that differ."""
        first = self.iterations[0]
        for index, iteration in enumerate(self.iterations):
            signs = [[addend.sign for addend in addends] for addends in iteration.addends]
            if signs != [[addend.sign for addend in addends] for addends in first.addends]:
                self.refuse(index, "adds more or less to what it carries")
        rows = list(zip(*(iteration.eqns for iteration in self.iterations), strict=False))
        for row in rows:
            for index, eqn in enumerate(row):
                if eqn.primitive is not row[0].primitive or len(eqn.invars) != len(row[0].invars):
                    self.refuse(index, f"computes `{eqn.primitive}` where the first computes `{row[0].primitive}`", eqn)
                shapes, expected = _shapes(eqn.outvars), _shapes(row[0].outvars)
                if shapes != expected:
                    what = f"makes {', '.join(shapes)} where the first makes {', '.join(expected)}"
                    self.refuse(index, f"{what} (`{eqn.primitive}`)", eqn)
                self.names[index].update(zip(eqn.outvars, row[-1].outvars, strict=True))
            for atoms in zip(*(eqn.invars for eqn in row), strict=True):
                if (other := self.other_source(atoms)) is not None:
                    what = f"gives `{row[other].primitive}` another argument than the first"
                    self.refuse(other, what, row[other])
        for index, iteration in enumerate(self.iterations):
            if len(iteration.eqns) != len(first.eqns):
                self.refuse(index, f"has {len(iteration.eqns)} equations and the first has {len(first.eqns)}")
        for addends in zip(*(iteration.addends for iteration in self.iterations), strict=True):
            for each in zip(*addends, strict=True):
                if (other := self.other_source([one.atom for one in each])) is not None:
                    self.refuse(other, "adds another of its values to what it carries than the first")
        return rows

    def other_source(self, atoms: Sequence[Any]) -> int | None:
        """The first iteration whose atom does not come from the same equation as that of iteration 0, if any."""
        made = [self.names[index].get(atom) if _compat.is_var(atom) else None for index, atom in enumerate(atoms)]
        return next((index for index, each in enumerate(made) if each is not made[0]), None)

    def evaluate_early(self, rows: Sequence[tuple[Any, ...]]) -> set[int]:
        """Evaluate equations with differing parameters before the loop; the positions of those made operands."""
        differing = {position for position, row in enumerate(rows) if len({parameters(eqn) for eqn in row}) > 1}
        made_by = {var: position for position, row in enumerate(rows) for var in row[-1].outvars}
        early: set[int] = set()
        eqns = [row[-1] for row in rows]
        places = {id(eqn): position for position, eqn in enumerate(eqns)}
        for cause in sorted(differing):
            made = eqns[cause]
            for eqn in (*needed(eqns[:cause], made.invars)[0], made):
                if eqn.primitive is _compat.jit_p and is_marked(eqn.params["name"]):
                    what = f"computes `{made.primitive}` with other settings than the first, in or after a task"
                    self.refuse(len(self.iterations) - 1, what, made)
                early.add(places[id(eqn)])
        tainted: set[int] = set()
        for position in sorted(early):
            atoms = zip(*(eqn.invars for eqn in rows[position]), strict=True)
            if position in differing or any(self.differs(each, made_by, tainted) for each in atoms):
                tainted.add(position)
        results = [var for position in sorted(tainted) for var in rows[position][-1].outvars if _compat.is_var(var)]
        values = [
            self.evaluated(index, [rows[position] for position in sorted(early)], results) for index in self.indices
        ]
        for var, each in zip(results, zip(*values, strict=True), strict=True):
            self.operands[var] = var, list(each)
        return tainted

    def evaluated(self, index: int, rows: Sequence[tuple[Any, ...]], results: Sequence[Any]) -> list[Any]:
        """The values in iteration `index` of `results`, which are variables of the last iteration."""
        iteration = self.iterations[index]
        here = {there: mine for mine, there in self.names[index].items()}
        eqns = [row[index] for row in rows]
        closed = _compat.close(iteration.jaxpr, list(iteration.values), [here[var] for var in results], eqns)
        return _compat.as_fun(closed)(*iteration.values.values()) if eqns else []

    def differs(self, atoms: Sequence[Any], made_by: dict[Any, int], tainted: set[int]) -> bool:
        """Whether an argument is not the same in all iterations."""
        if _compat.is_var(atoms[-1]) and atoms[-1] in made_by:
            return made_by[atoms[-1]] in tainted
        values = [self.value(index, atom) for index, atom in enumerate(atoms)]
        return not all(_is_same(value, values[0]) for value in values)

    def value(self, index: int, atom: Any) -> Any:
        """The value of a literal or closed-over variable."""
        return self.iterations[index].values[atom] if _compat.is_var(atom) else atom.val

    def operand(self, atoms: Sequence[Any]) -> Any:
        """The atom of the one body for an argument of every iteration: the variable, a constant, or an operand."""
        last = atoms[-1]
        if _compat.is_var(last) and last in self.names[-1]:
            return last
        values = [self.value(index, atom) for index, atom in enumerate(atoms)]
        if all(_is_same(value, values[0]) for value in values):
            if _compat.is_var(last):
                self.constants[last] = values[-1]
            return last
        key = tuple(id(value) if isinstance(value, jax.Array) else _bytes(value) for value in values)
        if key not in self.operands:
            self.operands[key] = _compat.new_var(last.aval), values
        return self.operands[key][0]

    def refuse(self, index: int, what: str, eqn: Any = None) -> NoReturn:
        where = f", at {line}" if eqn is not None and (line := _compat.source_lines(eqn)) else ""
        raise ValueError(
            f"microbatch_loop: iteration {index} of {self.label} {what}{where}. Microbatches must be one computation: "
            "equal shapes, and no `if` on what iteration it is other than for the first value of a sum."
        )


def _shapes(variables: Sequence[Any]) -> list[str]:
    return [f"{var.aval.dtype}{list(var.aval.shape)}" for var in variables]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return not (isinstance(one, jax.Array) or isinstance(other, jax.Array)) and _bytes(one) == _bytes(other)


def _bytes(value: Any) -> Hashable:
    # By bytes: `==` takes 0.0 and -0.0 for one value.
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def _stacked(values: Sequence[Any], dtype: Any) -> Any:
    return jnp.stack([value if isinstance(value, jax.Array) else jnp.asarray(value, dtype) for value in values])


def _sum(terms: Sequence[tuple[Any, int]], shape: tuple[int, ...]) -> Any:
    total: Any = None
    for value, sign in terms:
        term = -value if sign < 0 else value
        total = term if total is None else total + term
    return jnp.broadcast_to(total, shape)
