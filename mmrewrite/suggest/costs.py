"""What the layers of a step cost for any number of rows: the runtime's document, read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A figure that has a part for each row of a microbatch, and a constant one, as masks and weights do not grow."""

    constant: float
    each: float

    def at(self, rows: float) -> float:
        """The figure for so many rows."""
        return max(self.constant + self.each * rows, 0.0)


@dataclass(frozen=True)
class TensorCut:
    """What a model axis may cut in a layer: the dimensions between two products, and the arrays that have them.

    Attributes:
        divides: The number that the size of the axis must divide.
        products: The share of the operations of the layer's products.
        parameters: The share of the bytes of its parameters.
        kept: The share of the bytes that it keeps for its backward pass.
    """

    divides: int
    products: float
    parameters: float
    kept: float


@dataclass(frozen=True)
class Layer:
    """One layer, on all devices of its stage together.

    Attributes:
        passes: Of the forward pass and the two halves of the backward pass, products by type and bytes moved.
        kept: Bytes from the forward to the whole backward pass.
        late: Bytes that the input half leaves for the weight half.
        sent: Bytes that it sends to later layers, by their numbers: the next one, and what skips some.
        parameters: Bytes.
        optimizer_state: Bytes.
        gradients: Bytes.
        inputs: Bytes of the batch and of captured arrays.
        cuts: What a model axis may cut.
        again: Bytes that its backward pass makes again before it uses them.
    """

    passes: tuple[tuple[Mapping[str, Line], Line], ...]
    kept: Line
    late: Line
    sent: Mapping[int, Line]
    parameters: float
    optimizer_state: float
    gradients: float
    inputs: float
    cuts: tuple[TensorCut, ...] = ()
    again: Line = Line(0.0, 0.0)


def read_layers(document: Mapping[str, Any], names: Mapping[str, int]) -> list[Layer]:
    """The layers of a document of `mmruntime._commands.suggest`.

    Args:
        document: The document.
        names: The logical names by which a program has cuts, with what the size of their axis must divide.
    """
    traces = document["traces"]
    rows = [document["batch"] / trace["count"] for trace in traces]

    def line(values: list[float]) -> Line:
        if len(values) == 1:
            return Line(0.0, values[0] / rows[0])
        each = (values[0] - values[1]) / (rows[0] - rows[1])
        return Line(values[0] - each * rows[0], each)

    layers = []
    cuts: dict[int, list[TensorCut]] = defaultdict(list)
    for cut in document["cuts"]:
        sizes = [names[name] for name in cut["names"] if name in names]
        if sizes:
            cuts[cut["layer"]].append(TensorCut(max(sizes), cut["products"], cut["parameters"], cut["kept"]))
    count = len(traces[0]["layers"])
    for index in range(count):
        found = [trace["layers"][index] for trace in traces]
        passes = []
        for name in ("forward", "inputs", "weights"):
            kinds = sorted({kind for each in found for kind in each[name]["products"]})
            products = {kind: line([each[name]["products"].get(kind, 0.0) for each in found]) for kind in kinds}
            passes.append((products, line([each[name]["moved"] for each in found])))
        targets = sorted({int(target) for each in found for target in each["sent"]})
        first = found[0]
        layers.append(
            Layer(
                tuple(passes),
                # The passes of the last layer are one program, which keeps nothing in between that a trace shows.
                line([trace["layers"][max(count - 2, 0) if index == count - 1 else index]["kept"] for trace in traces]),
                line([each["late"] for each in found]),
                {to: line([each["sent"].get(str(to), 0.0) for each in found]) for to in targets if to > index},
                first["parameters"],
                first["optimizer_state"],
                first["gradients"],
                first["inputs_held"],
                tuple(cuts[index]),
            )
        )
    return layers


def name_divides(document: Mapping[str, Any]) -> dict[str, int]:
    """The number that the size of an axis must divide that a logical name is cut over, by the names of cuts."""
    found: dict[str, int] = {}
    for cut in document["cuts"]:
        for name in cut["names"]:
            found[name] = math.gcd(found.get(name, 0), cut["divides"])
    return {name: size for name, size in found.items() if name not in document["astray"]}
