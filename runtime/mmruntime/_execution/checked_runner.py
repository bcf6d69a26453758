"""A step whose results are checked, under `jax_debug_nans` and `jax_debug_infs`.

As with `jax.jit` it is the step's results that count: what a program makes and another one masks out is no error. So
that the origin can be named without a second run, what made an invalid value is kept as long as that value is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax

from mmruntime import _compat
from mmruntime._compat import is_var
from mmruntime._execution.find_invalid import (
    Computation,
    InvalidValue,
    Origin,
    ProgramsByEquation,
    kind_of_invalid,
    origin_of,
)
from mmruntime._execution.run import RunnerAround, StepRunner, Watch
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._processes.exchange import Exchange
from mmruntime._processes.group import Group
from mmruntime._processes.progress import progress

_PATIENCE_S = 3600.0


class CheckedRunner(RunnerAround):
    """A compiled step that raises where a result is invalid. Called as a `Runner`.

    Args:
        runner: Runs the step; none of its programs overwrites an argument.
        label: The step's name.
        names: The user's names for the inputs.
        results: What messages call each result.
        step: The step.
        program: Its instructions.
        shardings: The layout of each value.
        kinds: What is invalid: "nan", "inf" or both.
    """

    def __init__(
        self,
        runner: StepRunner,
        label: str,
        names: Sequence[str],
        results: Sequence[str],
        step: Step,
        program: Program,
        shardings: Shardings,
        kinds: Collection[str],
    ) -> None:
        super().__init__(runner)
        self._label, self._names, self._results = label, names, results
        self._step, self._program = step, program
        self._kinds = kinds
        self._again = ProgramsByEquation(step, shardings, kinds)
        self._given = {place[0]: name for place, name in zip(program.inputs, names, strict=True) if place is not None}
        for var, name in zip(step.invars, names, strict=True):
            self._given |= {slot: name for slot, _ in program.scalars.get(var, ())}
        for places in program.constants.values():
            self._given |= dict.fromkeys((slot for slot, _ in places), "")

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once.

        Raises:
            FloatingPointError: If a result holds what may not be there; in every process that runs the step.
        """
        return self.run_watched(inputs, lambda *_: None)

    def run_watched(self, inputs: Sequence[Any], watch: Watch) -> list[Any]:
        """Run the step once, calling `watch` after each instruction."""
        known: dict[int, InvalidValue] = {}
        sent: list[InvalidValue] = []

        def look(index: int, operands: Sequence[Any], values: Sequence[Any], issued: float) -> None:
            watch(index, operands, values, issued)
            self._note(index, operands, values, known, sent)

        # JAX would check the results of each program, and knows none of their lines.
        with _compat.without_result_checks():
            outputs = self._runner.run_watched(inputs, look)
            self.misplaced = self._runner.misplaced
            invalid = [k for k, value in enumerate(outputs) if kind_of_invalid(value, self._kinds)]
            problem = self._problem(outputs, invalid[0], known) if invalid else None
            if self.group is not None and jax.process_index() in self.group.members:
                problem = self._problem_of_all(self.group, problem, sent)
        if problem is not None:
            origin = f"encountered in {problem.origin}. It is" if problem.origin else "is"
            raise FloatingPointError(
                f"mjit: invalid value ({problem.kind}) {origin} in {problem.result} of {self._label}."
            )
        return outputs

    def _note(
        self,
        index: int,
        operands: Sequence[Any],
        values: Sequence[Any],
        known: dict[int, InvalidValue],
        sent: list[InvalidValue],
    ) -> None:
        """Remember what made the invalid results of an instruction, and forget what is freed."""
        item = self._program.instructions[index]
        for slot, value in zip(item.args, operands, strict=True):
            if slot in self._given and slot not in known and kind_of_invalid(value, self._kinds):
                known[slot] = InvalidValue(Computation(_given(self._given[slot]), {}), 0)
        causes = {position: known[slot] for position, slot in enumerate(item.args) if slot in known}
        found: dict[int, InvalidValue] = {}
        invalid = [k for k, value in enumerate(values) if kind_of_invalid(value, self._kinds)]
        if isinstance(item, RunInstruction):
            if invalid:
                computation = self._again.program(item, operands, causes)
                found = {item.results[k]: InvalidValue(computation, k) for k in invalid}
        else:
            # What comes from another process has its origin there.
            found = {item.results[k]: causes.get(k, _ELSEWHERE) for k in invalid}
            sent.extend(cause for k, cause in causes.items() if not sent and item.results[k] not in found)
        for slot in item.results:
            known.pop(slot, None)
        known |= found
        for slot in item.frees:
            known.pop(slot, None)

    def _problem(self, outputs: Sequence[Any], position: int, known: dict[int, InvalidValue]) -> _InvalidResult:
        """What is known here of an invalid result."""
        atom, slot = self._step.outvars[position], self._program.outputs[position]
        slots = [slot] if slot is not None else []
        slots += [each for each, _ in self._program.scalars.get(atom, ())] if is_var(atom) else []
        found = next((known[each] for each in slots if each in known), None)
        if found is not None:
            origin = str(origin_of(found))
        else:
            # It is handed on as it is, or another process has computed it.
            inputs = dict(zip(self._step.invars, self._names, strict=True))
            is_given = not is_var(atom) or atom in inputs or atom in self._step.constants
            origin = str(_given(inputs.get(atom, "") if is_var(atom) else "")) if is_given else ""
        kind = kind_of_invalid(outputs[position], self._kinds)
        return _InvalidResult(str(kind), origin, self._results[position])

    def _problem_of_all(
        self, group: Group, problem: _InvalidResult | None, sent: Sequence[InvalidValue]
    ) -> _InvalidResult | None:
        """The best described problem, the same in all processes of a step; None if all results are valid."""
        name = f"checked/{group.key}/{group.calls}"
        found = [_InvalidResult(*each) for each in self._shared(group, f"{name}/results", problem) if each is not None]
        if jax.process_index() == group.members[0]:
            # All have read what was left for the call before.
            Exchange().drop(f"checked/{group.key}/{group.calls - 1}")
        if not found or any(each.origin for each in found):
            return next((each for each in found if each.origin), None)
        origins = self._shared(group, f"{name}/sent", str(origin_of(sent[0])) if sent else "")
        return found[0]._replace(origin=next(filter(None, origins), ""))

    def _shared(self, group: Group, key: str, value: Any) -> list[Any]:
        """A value of each process, in all of them."""
        exchange = Exchange()
        exchange.put(f"{key}/{jax.process_index()}", json.dumps(value))
        found = []
        for process in group.members:
            with progress.waiting(f"the check of {self._label} by process {process}", (process,)):
                found.append(json.loads(exchange.get(f"{key}/{process}", _PATIENCE_S)))
        return found


class _InvalidResult(NamedTuple):
    """An invalid result: nan or inf, its origin in words if that is known here, and its name."""

    kind: str
    origin: str
    result: str


# It has an origin, of which nothing is known in this process.
_ELSEWHERE = InvalidValue(Computation(Origin(""), {}), 0)


def _given(name: str) -> Origin:
    return Origin(f"the argument {name}" if name else "a value that the step captures")
