"""Costs of every virtual stage, from a single number or one number for each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

Cost = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Time of each kind of action; every tuple has one number for each virtual stage."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]


@dataclass(frozen=True)
class ActivationSizes:
    """Memory that one microbatch of each virtual stage takes on its submesh.

    Attributes:
        whole: From the forward on.
        kept: The part of it that the input half leaves for the weight half.
        inputs: The part of it that a forward keeps which runs once more, from which that makes the rest again.
    """

    whole: tuple[float, ...]
    kept: tuple[float, ...]
    inputs: tuple[float, ...]


def numbers(parameter: str, value: object, expected: str) -> tuple[float, ...]:
    """A sequence of numbers as floats.

    Args:
        parameter: Name of the value, for the error.
        value: The sequence.
        expected: Description of valid values, for the error.

    Raises:
        TypeError: If the value is not a sequence of numbers.
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        items = list(value)
        # Protocols are slow to ask about.
        if all(isinstance(number, float | int | SupportsFloat) for number in items):
            return tuple(map(float, items))
    raise TypeError(f"{parameter} must be {expected}; got {value!r}.")


def per_stage(cost: Cost, parameter: str, num_stages: int, num_submeshes: int) -> tuple[float, ...]:
    """One number for each virtual stage.

    A single number is the cost of a submesh-sized stage, so every virtual stage gets `num_submeshes / num_stages`
    of it: half of it where each submesh has two. A sequence already has one number for each virtual stage.

    Raises:
        TypeError: If the cost is neither a number nor a sequence of numbers.
        ValueError: If the sequence has another length, or a number is negative or not finite.
    """
    if isinstance(cost, int | float):
        costs = (cost * num_submeshes / num_stages,) * num_stages
    else:
        costs = numbers(parameter, cost, "a number, or a sequence of them, one for each (virtual) stage")
        if len(costs) != num_stages:
            raise ValueError(
                f"{parameter} gives {len(costs)} costs for {num_stages} stages. Give one for each (virtual) stage, or "
                "one number for a submesh-sized stage."
            )
    if not all(0 <= number < math.inf for number in costs):
        raise ValueError(f"{parameter} must be finite and at least 0; got {cost!r}.")
    return costs


def stage_costs(
    num_stages: int,
    num_submeshes: int,
    forward: Cost,
    backward_input: Cost,
    backward_weight: Cost,
    backward: Cost | None,
) -> Costs:
    """The costs of each virtual stage. Without `backward`, a whole backward costs as much as its two halves."""

    def spread(cost: Cost, parameter: str) -> tuple[float, ...]:
        return per_stage(cost, parameter, num_stages, num_submeshes)

    inputs, weights = spread(backward_input, "backward_input"), spread(backward_weight, "backward_weight")
    whole = (
        tuple(a + b for a, b in zip(inputs, weights, strict=True)) if backward is None else spread(backward, "backward")
    )
    return Costs(spread(forward, "forward"), whole, inputs, weights)


def transfer_times(
    transfer_bytes: Cost, bandwidth: float, latency: float, num_stages: int, num_submeshes: int
) -> tuple[float, ...]:
    """Time for which a link is busy with the output of each stage.

    A single number of bytes is that of every stage, not divided among chunks: the activation between two layers has the
    same size wherever the model is cut.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If the latency or a size is negative, or the bandwidth is not above 0.
    """
    if not (isinstance(latency, int | float) and isinstance(bandwidth, int | float)):
        raise TypeError(f"latency and bandwidth must be numbers; got {latency=} and {bandwidth=}.")
    if latency < 0 or not bandwidth > 0:
        raise ValueError(f"latency must be at least 0 and bandwidth above 0; got {latency=} and {bandwidth=}.")
    sizes = (transfer_bytes,) * num_stages if isinstance(transfer_bytes, int | float) else transfer_bytes
    return tuple(size / bandwidth for size in per_stage(sizes, "transfer_bytes", num_stages, num_submeshes))


def activation_sizes(
    activation: Cost | None, weight: Cost | None, inputs: Cost | None, num_stages: int, num_submeshes: int
) -> ActivationSizes | None:
    """The bytes that a microbatch of each stage holds.

    Returns:
        The sizes, None if there are none.

    Raises:
        ValueError: If a part is more than all bytes, or only a part is given.
    """
    parts = {"weight_activation_bytes": weight, "input_bytes": inputs}
    if activation is None:
        for name, part in parts.items():
            if part is not None:
                raise ValueError(f"{name} is a part of activation_bytes, which is missing. Give both.")
        return None
    whole = per_stage(activation, "activation_bytes", num_stages, num_submeshes)
    found = {
        name: whole if part is None else per_stage(part, name, num_stages, num_submeshes)
        for name, part in parts.items()
    }
    for name, sizes in found.items():
        for stage in range(num_stages):
            if sizes[stage] > whole[stage]:
                raise ValueError(
                    f"{name} of stage {stage} is {sizes[stage]:g}, more than its activation_bytes {whole[stage]:g}; it "
                    "is a part of them."
                )
    return ActivationSizes(whole, found["weight_activation_bytes"], found["input_bytes"])
