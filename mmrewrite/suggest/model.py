"""What one plan costs: seconds of a step, and bytes of the fullest device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mmrewrite.suggest.costs import Layer
from mmrewrite.suggest.devices import LAUNCH, Accelerator
from mmruntime import schedules

# XLA's temporary bytes, which no trace shows, as a part of what a stage keeps: the most that was seen on CPU devices.
_TEMPORARY, _TEMPORARY_OF_BOTH = 1.1, 1.9


@dataclass(frozen=True)
class PlanChoice:
    """What a plan chooses.

    Attributes:
        stages: Stages of the mesh.
        data: Devices that share the rows of a microbatch.
        held: Devices of the other axes, which stay as they are.
        count: Microbatches of a batch.
        schedule: The schedule's name.
        chunks: Rounds in which layers are dealt out.
        by_cost: Whether the layers are cut by cost, not evenly.
    """

    stages: int
    data: int
    held: int
    count: int
    schedule: str
    chunks: int = 1
    by_cost: bool = False


@dataclass(frozen=True)
class Priced:
    """A plan and its price: seconds of a step and bytes of the fullest device."""

    choice: PlanChoice
    seconds: float
    memory: float
    idle: float


class CostModel:
    """Prices plans of one step on one kind of device."""

    def __init__(self, layers: Sequence[Layer], batch: int, device: Accelerator, *, donates: bool) -> None:
        self.layers, self.batch, self.device, self.donates = layers, batch, device, donates
        self._passes: dict[tuple[float, int], list[tuple[float, float, float]]] = {}

    def passes(self, rows: float, held: int) -> list[tuple[float, float, float]]:
        """Seconds of the forward pass and of both halves of the backward pass of each layer."""
        key = rows, held
        if key not in self._passes:
            found = []
            for layer in self.layers:
                times = [
                    max(
                        sum(line.at(rows) / self.device.speed(kind) for kind, line in products.items()),
                        moved.at(rows) / self.device.bandwidth,
                    )
                    / held
                    for products, moved in layer.passes
                ]
                # Each microbatch reads the sums of gradients, adds its own, and writes them.
                times[2] += 3 * layer.gradients / self.device.bandwidth
                found.append((times[0], times[1], times[2]))
            self._passes[key] = found
        return self._passes[key]

    def bound(self, stages: int, data: int, held: int, count: int) -> float:
        """Seconds that no schedule of so many stages and microbatches is below."""
        totals = [sum(times) for times in self.passes(self.batch / count / data, held)]
        return count * max(sum(totals) / stages, max(totals))

    def price(self, choice: PlanChoice, schedule: schedules.Schedule) -> Priced:
        """The price of a plan with this schedule, which has its stages, chunks and microbatches."""
        rows = self.batch / choice.count / choice.data
        times = self.passes(rows, choice.held)
        weights = [sum(each) for each in times] if choice.by_cost else [1.0] * len(times)
        bounds = schedules.cut(weights, schedule.num_stages)
        parts = [range(start, end) for start, end in itertools.pairwise(bounds)]
        forward = [sum(times[k][0] for k in part) + LAUNCH for part in parts]
        first = [sum(times[k][1] for k in part) + LAUNCH for part in parts]
        second = [sum(times[k][2] for k in part) for part in parts]
        if schedule.splits_backward:
            second = [each + LAUNCH for each in second]
        kept = [sum(self.layers[k].kept.at(rows) for k in part) for part in parts]
        late = [
            min(sum(self.layers[k].late.at(rows) for k in part), most) for part, most in zip(parts, kept, strict=True)
        ]
        temporary = [_TEMPORARY * size for size in kept]
        # The last stage runs forward and backward in one program, and holds nothing in between.
        forward[-1], first[-1] = forward[-1] + first[-1] - LAUNCH, 0.0
        temporary[-1] = _TEMPORARY_OF_BOTH * kept[-1]
        kept[-1] = late[-1] = 0.0
        edges = [self.layers[part[-1]].edge.at(rows) for part in parts]
        width = choice.data * choice.held
        bandwidth, latency = self.device.link(width * choice.stages)
        simulated = schedules.simulate(
            schedule,
            forward,
            first,
            second,
            latency,
            transfer_bytes=edges,
            bandwidth=bandwidth,
            activation_bytes=kept,
            weight_activation_bytes=late,
        )
        assert simulated.peak_bytes is not None
        gradients = [0.0] * choice.stages
        memory = [0.0] * choice.stages
        update = 0.0
        for where in range(choice.stages):
            own = [stage for stage in range(len(parts)) if schedule.placement[stage] == where]
            held = [self.layers[k] for stage in own for k in parts[stage]]
            state = sum(layer.parameters + layer.optimizer_state for layer in held)
            gradients[where] = sum(layer.gradients for layer in held)
            received = max((edges[stage - 1] for stage in own if stage), default=0.0)
            during = (
                simulated.peak_bytes[where]
                + max(max(temporary[stage] for stage in own), 2 * max(layer.gradients for layer in held))
                + (simulated.live[where] + 1) * received
            )
            after = sum(layer.parameters for layer in held) + (0.0 if self.donates else state)
            inputs = sum(layer.inputs for layer in held) / choice.data
            memory[where] = state + gradients[where] + inputs + max(during, after)
            update = max(update, (2 * state + gradients[where]) / self.device.bandwidth)
        most = max(gradients)
        summed = self.summed(most, choice.data, width)
        seconds = simulated.step_time + summed + update + LAUNCH
        return Priced(choice, seconds, max(memory), max(simulated.bubbles))

    def summed(self, size: float, data: int, width: int) -> float:
        """Seconds to add up so many bytes over a data axis."""
        if data == 1:
            return 0.0
        bandwidth, latency = self.device.link(width)
        return 2 * (data - 1) / data * size / bandwidth + latency

    def plain(self, devices: int, count: int, *, sharded: bool) -> tuple[float, float]:
        """Seconds and bytes of `jax.jit` over data alone, gradients accumulated, or with FSDP."""
        rows = self.batch / count / devices
        times = self.passes(rows, 1)
        parameters = sum(layer.parameters for layer in self.layers)
        state = parameters + sum(layer.optimizer_state for layer in self.layers)
        gradients = sum(layer.gradients for layer in self.layers)
        share = devices if sharded else 1
        compute = count * (sum(map(sum, times)) + LAUNCH)
        bandwidth, latency = self.device.link(devices)
        if sharded:
            moved = (2 * count * parameters + gradients) * (devices - 1) / devices / bandwidth
            largest = 2 * max(layer.parameters for layer in self.layers)
        else:
            moved, largest = self.summed(gradients, devices, devices), 0.0
        update = (2 * state + gradients) / share / self.device.bandwidth
        kept = sum(layer.kept.at(rows) for layer in self.layers)
        inputs = sum(layer.inputs for layer in self.layers) / devices
        after = (parameters + (0.0 if self.donates else state)) / share
        during = max(_TEMPORARY_OF_BOTH * kept + largest, after)
        seconds = (max(compute, moved) if sharded else compute + moved) + update
        return seconds + latency * (devices > 1), (state + gradients) / share + inputs + during
