"""A step of several processes: what they agree on before it is compiled, and what runs it in each of them.

`plan` imports this for such steps alone, since most run in one process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax

from mmruntime._core.switches import settings_in_words
from mmruntime._execution.compile import Compiled, compile_program
from mmruntime._execution.run import StepRunner
from mmruntime._execution.run_across import AcrossRunner
from mmruntime._execution.step_agreement import StepAgreement
from mmruntime._execution.transfers.across import AcrossTransport
from mmruntime._execution.transfers.channels import channel, chosen
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program
from mmruntime._partition.placement.place import Placement
from mmruntime._processes.group import group_of
from mmruntime._step.fingerprint import fingerprint


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
