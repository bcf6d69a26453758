"""A trial of a step, for tools: each layer is a stage of its own, and batches are cut into a given number of pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class LayerTrial:
    """What a trial asks for, and what it finds.

    Attributes:
        platform: Which devices the step would run on, as `jax.default_backend()` names them.
        count: How many microbatches a batch is cut into; None for what the program says.
        layers: The axes over which `stage` deals out layers, and of how many layers, as they are met.
        counts: How many microbatches the program itself asks for, by call of `microbatch`, as they are met.
        rounds: Into how many rounds, and whether in a V, the program itself deals its layers.
        batches: The examples of each batch that is cut.
    """

    platform: str
    count: int | None = None
    layers: set[tuple[str, int]] = field(default_factory=set)
    counts: list[int] = field(default_factory=list)
    rounds: set[tuple[int, str | None]] = field(default_factory=set)
    batches: list[int] = field(default_factory=list)


# The trial that is under way; None outside of trials.
LAYER_TRIAL: ContextVar[LayerTrial | None] = ContextVar("layer_trial", default=None)


@contextlib.contextmanager
def trying_layers(trial: LayerTrial) -> Iterator[None]:
    """Within the context, steps are traced for a trial."""
    token = LAYER_TRIAL.set(trial)
    try:
        yield
    finally:
        LAYER_TRIAL.reset(token)
