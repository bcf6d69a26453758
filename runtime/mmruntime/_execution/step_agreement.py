"""That all processes which run a step have made the same plan of it, and call it in the same way."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._execution.host_values import on_cpu
from mmruntime._execution.transfers.own_parts import in_words, is_global
from mmruntime._jaxpr.ir import Step, is_scalar
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program
from mmruntime._processes.agreement import agree, changed
from mmruntime._processes.group import Group

# How many bytes of a value that each process has are compared in every call.
_SAMPLE = 4096
_SAME_PROGRAM = (
    "Every process must run the same program: the same code and versions, arguments of the same shapes, devices in the "
    "same order."
)
_SAME_ARGUMENTS = (
    "An array with a NamedSharding is one array that all processes speak of, so its layout must be the same in all. "
    "Anything else (NumPy arrays, numbers, arrays on one device) is a value that each process has, and must be equal "
    "in all. For data of which each process has loaded a part, use jax.make_array_from_process_local_data."
)

_GIVEN = "how the arguments are given"
# Of a larger array on a device that is no CPU, only a corner is copied to the host for that.
_CORNER = 8

# The inputs that are not where a step wants them: position, and layout or None.
_Odd = tuple[tuple[int, Any], ...]


class StepAgreement:
    """Compares a step with those of other processes, before it is compiled or run for the first time.

    Args:
        label: The step's name.
        names: The user's names for the inputs.
        parts: What must be equal, by the name of each part.
        group: The processes that run the step.
        step: The step.
        program: Its instructions.
        shardings: The layout of each value.
    """

    def __init__(
        self,
        label: str,
        names: Sequence[str],
        parts: Mapping[str, str],
        group: Group,
        step: Step,
        program: Program,
        shardings: Shardings,
    ) -> None:
        self._label, self._names, self._parts, self._group = label, names, parts, group
        text = "\n".join(f"{name}: {part}" for name, part in parts.items())
        self._mark = hashlib.blake2b(text.encode(), digest_size=12).digest()
        self._agreed = False
        # Those of the host as they are now: the program may write into them before a call.
        self._constants = [
            value if isinstance(value, jax.Array) else (_kind(value), _checksum("", value))
            for value in step.constants.values()
        ]
        self._expected: list[tuple[int, NamedSharding]] = []
        for position, (var, home) in enumerate(zip(step.invars, program.inputs, strict=True)):
            # A scalar that nothing reads may be there to tell one call from another.
            if is_scalar(var) and (program.scalars.get(var) or home is None):
                self._expected.append((position, shardings.everywhere))
            elif home is not None:
                self._expected.append((position, shardings[var, home[1]]))
        # The ways in which arguments were given so far, in words.
        self._seen: dict[_Odd, str] = {}

    def reach(self, inputs: Sequence[Any]) -> tuple[bytes, str]:
        """Make sure that all processes make this call; waits for them if there was none like it before.

        Returns:
            What marks the call, the same in all processes; and in words which arguments are not where the step wants
            them.

        Raises:
            RuntimeError: If the processes differ; see `agree`.
        """
        odd, checksum = self._survey(inputs)
        if not self._agreed or odd not in self._seen:
            given = {_GIVEN: self._shown(odd, inputs)}
            before = self._group.compared.get(self._label, {})
            if not self._agreed:
                # The message shows the first parts that differ; the others may follow from them.
                causes = {name: self._parts[name] for name in list(self._parts)[:4]}
                parts = {**causes, **given, **self._parts, **self._captured()}
                advice = f"{_SAME_PROGRAM} {_SAME_ARGUMENTS}"
                agree(self._label, parts, self._group, advice, why=changed(before, self._parts))
                self._agreed = True
            else:
                why = changed(before, given)
                agree(f"how {self._label} is called", given, self._group, _SAME_ARGUMENTS, why=why)
            self._group.compared[self._label] = {**self._parts, **given}
            self._seen[odd] = "; ".join(f"{self._names[position]}: {_layout(placed)}" for position, placed in odd)
        if not odd:
            return self._mark, ""
        words = self._seen[odd]
        return self._mark + f"{words} {checksum}".encode(), words

    def _survey(self, inputs: Sequence[Any]) -> tuple[_Odd, int]:
        """The inputs that are not where the step wants them, and a checksum of the plain values among them."""
        odd: list[tuple[int, Any]] = []
        checksum = 0
        for position, sharding in self._expected:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if placed is sharding or placed == sharding:
                continue
            if is_global(value):
                odd.append((position, placed))
            else:
                odd.append((position, None))
                checksum = zlib.crc32(_sample(value), checksum)
        return tuple(odd), checksum

    def _shown(self, odd: _Odd, inputs: Sequence[Any]) -> str:
        """How arguments are given that are not where the step wants them, in a line each."""
        lines = []
        for position, placed in odd:
            value = inputs[position]
            how = _layout(placed)
            if placed is None:
                name = f"{self._names[position]} of {self._label}"
                how += f", {_kind(value)}, checksum {_checksum(name, value)}"
            lines.append(f"{self._names[position]}: {how}")
        return "\n".join(lines)

    def _captured(self) -> dict[str, str]:
        """Captured arrays. Each process has its own, and they must be equal as well."""
        name = f"a captured array of {self._label}"
        found = [
            (_kind(value), _checksum(name, value)) if isinstance(value, jax.Array) else value
            for value in self._constants
            if not is_global(value)
        ]
        return {"the values of captured arrays": "\n".join(f"{kind}, checksum {checksum}" for kind, checksum in found)}


def _layout(placed: Any) -> str:
    return "a value that each process has" if placed is None else f"one array over {in_words(placed)}"


def _kind(value: Any) -> str:
    if isinstance(value, jax.Array):
        return "a jax.Array"
    return "a number" if isinstance(value, bool | int | float | complex) else "a NumPy array"


def _checksum(name: str, value: Any) -> str:
    """The checksum of a sample of a value that each process has; waits for it, if it is still being computed.

    Raises:
        ValueError: If other processes have a part of it, so that it is none.
    """
    if isinstance(value, jax.Array):
        if not value.is_fully_addressable:
            raise ValueError(
                f"mjit: {name} is laid out by {value.sharding}, and on devices of other processes. Only arrays with a "
                "NamedSharding are one array that all processes speak of: use jax.device_put or "
                "jax.jit(..., out_shardings=...) with one."
            )
        if _compat.is_key(value.dtype):
            value = jax.random.key_data(value)
        if value.nbytes > _SAMPLE and not on_cpu(value.sharding):
            value = value[(slice(_CORNER),) * value.ndim]
        value = np.asarray(value)
    return f"{zlib.crc32(_sample(value)):08x}"


def _sample(value: Any) -> bytes:
    """Some bytes of a value that each process has; none of an array that may not be computed yet."""
    if isinstance(value, jax.Array):
        return b""
    array = np.asarray(value)
    step = max(1, array.nbytes // _SAMPLE)
    return array.ravel()[::step].tobytes()
