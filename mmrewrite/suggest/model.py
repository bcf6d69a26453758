"""What one plan costs: seconds of a step, and bytes of the fullest device."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmrewrite.suggest.costs import Layer
from mmrewrite.suggest.devices import Accelerator
from mmruntime import schedules

# XLA's temporary bytes, which no trace shows, as a part of what a stage keeps: the most that was seen on CPU devices.
TEMPORARY, TEMPORARY_OF_BOTH = 1.1, 1.9


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
        memory_bytes: The bound of `schedule="auto"`; None for the others.
        model: Devices that share what may be cut of a layer.
    """

    stages: int
    data: int
    held: int
    count: int
    schedule: str
    chunks: int = 1
    by_cost: bool = False
    memory_bytes: int | None = None
    model: int = 1

    @property
    def width(self) -> int:
        """The devices of a stage."""
        return self.data * self.held * self.model


@dataclass(frozen=True)
class Priced:
    """A plan and its price.

    Attributes:
        choice: The plan.
        seconds: Of a step.
        memory: Bytes of the fullest device.
        idle: Seconds that the device waits most.
        busy: Seconds that the busiest stage computes.
        summed: Seconds of the sums of gradients over the data axis.
        update: Seconds of the update.
        parts: What the fullest device holds, in bytes.
    """

    choice: PlanChoice
    seconds: float
    memory: float
    idle: float
    busy: float = 0.0
    summed: float = 0.0
    update: float = 0.0
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True)
class _StageCosts:
    """Of one microbatch, by stage: the layers, seconds of its passes, and bytes."""

    parts: list[range]
    forward: list[float]
    inputs: list[float]
    weights: list[float]
    kept: list[float]
    late: list[float]
    temporary: list[float]
    edges: list[float]


class CostModel:
    """Prices plans of one step on one kind of device; with `cuts_state`, the data axis cuts the optimizer's state."""

    def __init__(
        self,
        layers: Sequence[Layer],
        batch: int,
        device: Accelerator,
        *,
        donates: bool,
        cuts_state: bool = False,
    ) -> None:
        self.layers, self.batch, self.device, self.donates = layers, batch, device, donates
        self.cuts_state = cuts_state
        # What is computed again has no half of a backward pass that could wait.
        self.recomputes = any(layer.again.each or layer.again.constant for layer in layers)
        self._passes: dict[tuple[float, int, int], list[tuple[float, float, float]]] = {}
        self._shares: dict[int, list[_Shares]] = {}

    def unknown_types(self) -> list[str]:
        """The types of products that the device has no figure for."""
        kinds = {kind for layer in self.layers for products, _ in layer.passes for kind in products}
        return sorted(kind for kind in kinds if not self.device.knows(kind))

    def models(self) -> list[int]:
        """The sizes that a model axis may have, one first: those that cut something, within the innermost link."""
        divides = {cut.divides for layer in self.layers for cut in layer.cuts}
        sizes = range(2, self.device.links[0].devices + 1)
        return [1, *(size for size in sizes if any(each % size == 0 for each in divides))]

    def _shares_of(self, model: int) -> list[_Shares]:
        """What each device has of each layer."""
        if model not in self._shares:
            self._shares[model] = [_shares(layer, model) for layer in self.layers]
        return self._shares[model]

    def passes(self, rows: float, held: int, model: int = 1) -> list[tuple[float, float, float]]:
        """Seconds of the forward pass and of both halves of the backward pass of each layer."""
        key = rows, held, model
        if key not in self._passes:
            found = []
            link = self.device.link(model)
            stream = 0.0
            for layer, shares in zip(self.layers, self._shares_of(model), strict=True):
                together = max if self.device.overlaps else operator.add
                times = [
                    together(
                        sum(line.at(rows) / self.device.speed(kind) for kind, line in products.items()),
                        moved.at(rows) / self.device.bandwidth,
                    )
                    * (shares.products / held)
                    for products, moved in layer.passes
                ]
                # The last layer gets as much as those before it hand on.
                stream = max((line.at(rows) for line in layer.sent.values()), default=stream)
                summed = 2 * (model - 1) / model * stream / link.bandwidth + link.latency
                times[0] += shares.cuts * summed
                times[1] += shares.cuts * summed
                # Each microbatch reads the sums of gradients, adds its own, and writes them.
                times[2] += 3 * layer.gradients * shares.parameters / self.device.bandwidth
                found.append((times[0], times[1], times[2]))
            self._passes[key] = found
        return self._passes[key]

    def bound(self, stages: int, data: int, held: int, model: int, count: int) -> float:
        """Seconds that no schedule of so many stages and microbatches is below."""
        totals = [sum(times) for times in self.passes(self.batch / count / data, held, model)]
        layers = zip(self.layers, self._shares_of(model), strict=True)
        gradients = sum(layer.gradients * own.parameters for layer, own in layers)
        summed = self.summed(gradients / stages, data, data * held * model)
        return count * max(sum(totals) / stages, max(totals)) + summed + self.device.launch

    def parts(self, choice: PlanChoice, num_stages: int) -> list[range]:
        """The layers of each stage."""
        times = self.passes(self.batch / choice.count / choice.data, choice.held, choice.model)
        weights = [sum(each) for each in times] if choice.by_cost else [1.0] * len(times)
        return [range(start, end) for start, end in itertools.pairwise(schedules.cut(weights, num_stages))]

    def _stage_costs(self, choice: PlanChoice, num_stages: int, *, splits: bool) -> _StageCosts:
        rows = self.batch / choice.count / choice.data
        times = self.passes(rows, choice.held, choice.model)
        shares = self._shares_of(choice.model)
        parts = self.parts(choice, num_stages)
        launch = self.device.launch
        forward = [sum(times[k][0] for k in part) + launch for part in parts]
        inputs = [sum(times[k][1] for k in part) + launch for part in parts]
        second = [sum(times[k][2] for k in part) + launch * splits for part in parts]
        kept = [sum(self.layers[k].kept.at(rows) * shares[k].kept for k in part) for part in parts]
        late = [
            min(sum(self.layers[k].late.at(rows) * shares[k].kept for k in part), most)
            for part, most in zip(parts, kept, strict=True)
        ]
        again = [max(self.layers[k].again.at(rows) * shares[k].kept for k in part) for part in parts]
        temporary = [TEMPORARY * (size + more) for size, more in zip(kept, again, strict=True)]
        # The last stage runs forward and backward in one program, and holds nothing in between.
        forward[-1], inputs[-1] = forward[-1] + inputs[-1] - launch, 0.0
        temporary[-1] = TEMPORARY_OF_BOTH * (kept[-1] + again[-1])
        kept[-1] = late[-1] = 0.0
        # What skips stages counts where it arrives.
        edges = [
            sum(
                line.at(rows)
                for layer in self.layers[: part.stop]
                for target, line in layer.sent.items()
                if following is not None and target in following
            )
            for part, following in zip(parts, [*parts[1:], None], strict=True)
        ]
        return _StageCosts(parts, forward, inputs, second, kept, late, temporary, edges)

    def price(self, choice: PlanChoice, schedule: schedules.Schedule) -> Priced:
        """The price of a plan with this schedule, which has its stages, chunks and microbatches."""
        costs = self._stage_costs(choice, schedule.num_stages, splits=schedule.splits_backward)
        shares = self._shares_of(choice.model)
        link = self.device.link(choice.width * choice.stages)
        simulated = schedules.simulate(
            schedule,
            costs.forward,
            costs.inputs,
            costs.weights,
            link.latency,
            transfer_bytes=costs.edges,
            bandwidth=link.bandwidth,
            activation_bytes=costs.kept,
            weight_activation_bytes=costs.late,
        )
        assert simulated.peak_bytes is not None
        fullest: dict[str, float] = {}
        most = update = busiest = 0.0
        for where in range(choice.stages):
            own = [stage for stage in range(len(costs.parts)) if schedule.placement[stage] == where]
            held = [(self.layers[k], shares[k].parameters) for stage in own for k in costs.parts[stage]]
            parameters = sum(layer.parameters * share for layer, share in held)
            optimizer = sum(layer.optimizer_state * share for layer, share in held)
            optimizer /= choice.data if self.cuts_state else 1
            gradients = sum(layer.gradients * share for layer, share in held)
            received = max((costs.edges[stage - 1] for stage in own if stage), default=0.0)
            during = {
                "activations": simulated.peak_bytes[where],
                "temporary": max(
                    max(costs.temporary[stage] for stage in own),
                    2 * max(layer.gradients * share for layer, share in held),
                ),
                "received": (simulated.live[where] + 1) * received,
            }
            after = {"results": parameters + (0.0 if self.donates else parameters + optimizer)}
            parts = {
                "parameters": parameters,
                "optimizer state": optimizer,
                "gradients": gradients,
                "inputs": sum(layer.inputs for layer, _ in held) / choice.data,
                **(during if sum(during.values()) > sum(after.values()) else after),
            }
            if sum(parts.values()) > sum(fullest.values()):
                fullest = parts
            # Cut state makes parts of the parameters, which are then sent to all.
            most = max(most, gradients + (parameters / 2 if self.cuts_state else 0.0))
            # Sums of gradients are made zero before, and read.
            update = max(update, 2 * (parameters + optimizer + gradients) / self.device.bandwidth)
            each = [costs.forward[stage] + costs.inputs[stage] + costs.weights[stage] for stage in own]
            busiest = max(busiest, choice.count * sum(each))
        summed = self.summed(most, choice.data, choice.width)
        seconds = simulated.step_time + summed + update + self.device.launch
        memory = sum(fullest.values())
        return Priced(choice, seconds, memory, max(simulated.bubbles), busiest, summed, update, fullest)

    def searched(self, found: Priced, room: float) -> Priced | None:
        """A plan with the best order that a search finds in the memory that is left; None if there is none."""
        choice, held = found.choice, found.parts or {}
        costs = self._stage_costs(choice, choice.stages * choice.chunks, splits=True)
        link = self.device.link(choice.width * choice.stages)
        left = room - found.memory + held.get("activations", 0.0)
        if choice.chunks > 1 or left <= 0 or "activations" not in held:
            return None
        try:
            chosen = schedules.auto(
                choice.stages,
                choice.count,
                forward=costs.forward,
                backward_input=costs.inputs,
                backward_weight=costs.weights,
                latency=link.latency,
                transfer_bytes=costs.edges,
                bandwidth=link.bandwidth,
                activation_bytes=costs.kept,
                weight_activation_bytes=costs.late,
                memory=left,
            )
        except ValueError:
            return None
        priced = self.price(choice, chosen.schedule)
        # The bound of the hint is on all devices of a stage together, and counts what several hold once.
        whole = left * choice.data * choice.held / max(each.kept for each in self._shares_of(choice.model))
        return replace(priced, choice=replace(choice, schedule=schedules.AUTO, memory_bytes=int(whole)))

    def summed(self, size: float, data: int, width: int) -> float:
        """Seconds to add up so many bytes over a data axis."""
        if data == 1:
            return 0.0
        link = self.device.link(width)
        return 2 * (data - 1) / data * size / link.bandwidth + link.latency

    def plain(self, data: int, count: int, *, shards: int = 1, model: int = 1) -> tuple[float, float]:
        """Seconds and bytes of `jax.jit` over data and a model axis, gradients accumulated.

        Neighbouring `shards` of the data axis have a part of the state each, with FSDP among them.
        """
        rows = self.batch / count / data
        times = self.passes(rows, 1, model)
        layers = list(zip(self.layers, self._shares_of(model), strict=True))
        parameters = sum(layer.parameters * own.parameters for layer, own in layers)
        state = parameters + sum(layer.optimizer_state * own.parameters for layer, own in layers)
        gradients = sum(layer.gradients * own.parameters for layer, own in layers)
        compute = count * (sum(map(sum, times)) + self.device.launch)
        if shards > 1:
            # Parameters come while layers before them compute.
            link = self.device.link(shards * model)
            gathered = (2 * count * parameters + gradients) * (shards - 1) / shards / link.bandwidth
            compute = max(compute, gathered) + link.latency
        summed = self.summed(gradients / shards, data // shards, data * model)
        largest = 2 * max(layer.parameters * own.parameters for layer, own in layers) if shards > 1 else 0.0
        update = 2 * (state + gradients) / shards / self.device.bandwidth
        kept = sum(layer.kept.at(rows) * own.kept for layer, own in layers)
        inputs = sum(layer.inputs for layer in self.layers) / data
        after = (parameters + (0.0 if self.donates else state)) / shards
        during = max(TEMPORARY_OF_BOTH * kept + largest, after)
        return compute + summed + update, (state + gradients) / shards + inputs + during


@dataclass(frozen=True)
class _Shares:
    """What each device of a model axis has of a layer, one for all of it, and how many cuts there are."""

    products: float = 1.0
    parameters: float = 1.0
    kept: float = 1.0
    cuts: int = 0


def _shares(layer: Layer, model: int) -> _Shares:
    cuts = [cut for cut in layer.cuts if model > 1 and cut.divides % model == 0]
    saved = 1 - 1 / model
    return _Shares(
        1 - saved * sum(cut.products for cut in cuts),
        1 - saved * sum(cut.parameters for cut in cuts),
        1 - saved * sum(cut.kept for cut in cuts),
        len(cuts),
    )
