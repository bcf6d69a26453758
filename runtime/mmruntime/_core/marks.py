"""Marks that a traced program carries: tasks and microbatch loops, as names of inner jits and scopes.

A mark is only a name, so under plain `jax.jit` it does nothing, and JAX's own differentiation,
batching and rematerialisation keep it: the forward and the transposed inner jit of a task have its name.
The name holds a number, and the table from numbers to values is kept here for the life of the process.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax.numpy as jnp
import numpy as np

from mmruntime import schedules
from mmruntime._core.task import Task
from mmruntime.schedules._catalog import find_record

# In which type floats shorter than float32 are added up: in float32, or in that of the parameter.
FLOAT32 = "float32"
PARAMETER = "parameter"
Rows = tuple[tuple[schedules.Action | str | tuple[int, str], ...], ...]

K = TypeVar("K", bound=Hashable)


class _Marks(Generic[K]):
    """Names that mark values; equal values have one number."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._numbers: dict[K, int] = {}
        self._values: list[K] = []
        self._pattern = re.compile(rf"(?:^|/){prefix}(\d+)(?:_|$)")

    def name(self, value: K, label: str) -> str:
        """The name that marks a value; `label` makes it readable in profiles."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return f"{self.prefix}{number}_{re.sub(r'[^A-Za-z0-9_]+', '_', label)}"

    def find(self, name: str) -> K | None:
        """The value that a name marks, None if it marks none of this kind."""
        match = self._pattern.search(name)
        return None if match is None else self._values[int(match.group(1))]


@dataclass(frozen=True)
class LoopSpec:
    """How a microbatch loop is to be run.

    Attributes:
        count: Number of microbatches.
        num_batch_operands: How many of the scan's operands are cut into microbatches.
        schedule: Name of the schedule, or a hashable schedule object.
        custom: Rows of task names per submesh, as `schedules.custom` takes them, or None.
        num_stages: How many stages the user expects the tasks to make, or None.
        interleave: How many of them on each submesh, or None.
        proof: How the results make up those of the whole batch, in lines for people.
        all_gather: Mesh axes over which parameters are gathered once per step, not in each program that reads them.
        sync: When devices that share parameters add up their gradients: once per "step", or in each "microbatch".
        accumulate: In which type floats are added up; see `accumulator_type`.
        slices: How many slices of the sequence a microbatch is cut into.
        sequence_dim: The dimension of the sequence in the arrays of a microbatch.
    """

    count: int
    num_batch_operands: int = 0
    schedule: Hashable = schedules.DEFAULT
    custom: Rows | None = None
    num_stages: int | None = None
    interleave: int | None = None
    proof: tuple[str, ...] = ()
    all_gather: tuple[str, ...] = ()
    sync: str = "step"
    accumulate: str = FLOAT32
    slices: int = 1
    sequence_dim: int = 1

    @property
    def may_replicate(self) -> bool:
        """Whether stages may have replicas, so that each microbatch has its own placement."""
        if isinstance(self.schedule, str):
            record = find_record(self.schedule)
            return record is not None and record.has_replicas
        return isinstance(self.schedule, schedules.Schedule) and bool(self.schedule.replicas)


def accumulator_type(dtype: Any, accumulate: str = FLOAT32) -> Any:
    """The type of a sum of values of a type.

    A sum of 8 significant bits, as bfloat16 has, stops growing after 256 equal terms, and one of float16 overflows at
    65,504. So floats shorter than float32 are added up in float32, and converted back once.

    Args:
        dtype: The type of the values.
        accumulate: "float32", or "parameter" for the type of the values themselves.
    """
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32  # type: ignore[no-untyped-call]
    return np.dtype(np.float32) if accumulate == FLOAT32 and is_short else dtype


TASKS: _Marks[Task] = _Marks("mm_task_")
LOOPS: _Marks[LoopSpec] = _Marks("mm_microbatch_")


def is_marked(name: str) -> bool:
    """Whether a name marks a task or a microbatch loop."""
    return TASKS.find(name) is not None or LOOPS.find(name) is not None
