"""A step of several processes: what they agree on before it is compiled, and what runs it in each of them.

`plan` imports this for such steps alone, since most run in one process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._core.marks import LOOPS, TASKS
from mmruntime._core.switches import settings_in_words
from mmruntime._execution.compile import Compiled, compile_program
from mmruntime._execution.run import StepRunner
from mmruntime._execution.run_across import AcrossRunner
from mmruntime._execution.step_agreement import StepAgreement
from mmruntime._execution.transfers.across import AcrossTransport
from mmruntime._execution.transfers.channels import channel, chosen
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._partition.placement.place import Placement
from mmruntime._processes.group import group_of


def runner_across(
    label: str,
    names: tuple[str, ...],
    members: tuple[int, ...],
    step: Step,
    placement: Placement,
    program: Program,
    shardings: Shardings,
    donated: Collection[int],
    owned: Collection[int] | None,
    parts: Sequence[Any] | None,
) -> tuple[Compiled, StepRunner]:
    """The executables of a step, and what runs them in this process.

    Args:
        label: The step's name.
        names: The user's names for the inputs.
        members: The processes that run it.
        step: The step.
        placement: Where it runs.
        program: Its instructions.
        shardings: The layout of every value.
        donated: Positions of the inputs that the caller donates.
        owned: Slots that programs may overwrite; None if they may none.
        parts: The inputs, where the step is to run; the processes compare how they are given before it is compiled.
    """
    transport = chosen()
    settings = f"{settings_in_words()}\ntransport: {transport}"
    compared = fingerprint(label, names, step, placement, shardings, program, settings)
    agreement = StepAgreement(label, names, compared, group_of(members), step, program, shardings)
    if parts is not None and jax.process_index() in members:
        agreement.reach(parts)
    compiled = compile_program(program, shardings, owned, AcrossTransport(channel(transport)))
    return compiled, AcrossRunner(label, names, agreement, step, program, compiled, shardings, donated)


_ADDRESS = re.compile(r"0x[0-9a-f]+")
_MARK = re.compile(rf"({TASKS.prefix}|{LOOPS.prefix})\d+")


def fingerprint(
    label: str,
    names: tuple[str, ...],
    step: Step,
    placement: Placement,
    shardings: Shardings,
    program: Program,
    settings: str,
) -> dict[str, str]:
    """The parts of a step that must be equal in all processes, as texts of lines.

    Args:
        label: The step's name.
        names: The user's names for the inputs.
        step: The step.
        placement: Where it runs.
        shardings: The layout of every value.
        program: Its instructions.
        settings: All else that a step depends on.
    """
    counts = Counter(device.process_index for device in jax.devices())
    numbers: dict[Any, int] = {}
    keys = [
        f"{numbers.setdefault(var, len(numbers))} {_type(var.aval)} submesh {where} microbatch {k} "
        f"{shardings[var, where].spec}"
        for var, where, k in program.keys
    ]
    return {
        "the step that is called": label,
        "the versions": _compat.versions(),
        "the devices of each process": "\n".join(
            f"process {each} has {count}" for each, count in sorted(counts.items())
        ),
        "the arguments": "\n".join(f"{name}: {_type(var.aval)}" for name, var in zip(names, step.invars, strict=True)),
        "the settings": settings,
        "the submeshes": "\n".join(map(_submesh, placement.submeshes.meshes)),
        "the schedule": "\n".join(
            f"{each.schedule.name}, {each.schedule.num_microbatches} microbatches, {len(each.stages)} stages"
            for each in program.pipelines
        ),
        "the equations": _numbered("\n".join(_ADDRESS.sub("", str(op.eqn)) for op in step.ops())),
        "the captured arrays": "\n".join(_type(var.aval) for var in step.constants),
        "the order of instructions": "\n".join(map(_instruction, program.instructions)),
        "the values and their layouts": "\n".join([*keys, f"results {program.outputs}"]),
    }


def _type(aval: Any) -> str:
    """Type and shape, and what `str_short` leaves out: a weak type changes the types of what is computed with it."""
    return f"{aval.str_short()}{' of a weak type' if getattr(aval, 'weak_type', False) else ''}"


def _numbered(text: str) -> str:
    """The text with marks numbered as they appear in it.

    Their own numbers say what a process has traced before, which others need not have. What they mean shows in the
    instructions.
    """
    numbers: dict[str, int] = {}
    return _MARK.sub(lambda found: f"{found[1]}{numbers.setdefault(found[0], len(numbers))}", text)


def _submesh(mesh: Any) -> str:
    axes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    return f"{axes}: " + ", ".join(
        f"device {device.id} of process {device.process_index}" for device in mesh.devices.flat
    )


def _instruction(item: Any) -> str:
    if isinstance(item, RunInstruction):
        tasks = ", ".join(item.spec.segment.tasks) if item.spec.segment is not None else ""
        what = f"run {tasks or item.spec.kind} on submesh {item.spec.submesh}"
    else:
        what = f"send {len(item.values)} arrays from submesh {item.source} to {item.target}"
    return f"{what}, microbatch {item.microbatch}, {item.args} to {item.results}"
