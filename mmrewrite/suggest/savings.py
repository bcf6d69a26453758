"""Plans with less memory that a line of the user's makes possible: layers computed again, optimizer state over data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrewrite.suggest.costs import Layer, Line
from mmrewrite.suggest.model import CostModel, Priced
from mmrewrite.suggest.search import ERROR, ComparedPlans, FixedChoices, find_plans

RECOMPUTE, STATE = "recompute", "state"

# A word of the imports of modules with layers of a library, and what stands there in place of `layer(x)`.
_AGAIN = {
    "nnx": "nnx.remat(Layer.__call__)(layer, x)",
    "linen": "nn.remat(Layer)(...)(x)",
    "equinox": "eqx.filter_checkpoint(layer)(x)",
    "haiku": "hk.remat(layer)(x)",
}
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t].*", re.MULTILINE)
_SCAN = re.compile(r"\bscan\(")
_WORD = re.compile(r"\w+")
_IN_SCAN = "jax.lax.scan(jax.checkpoint(layer), ...)"
_ELSEWHERE = "jax.checkpoint(layer)(x)"


@dataclass(frozen=True)
class Saving:
    """The best pipeline once a line is written: `RECOMPUTE` or `STATE`."""

    kind: str
    best: Priced


def savings(
    model: CostModel, devices: int, held: int, found: ComparedPlans, *, data: bool, fixed: FixedChoices
) -> tuple[Saving, ...]:
    """The plans that pay beside what was found, where memory is what decides; none where it is not."""
    if not found.is_bounded:
        return ()
    others = [each.seconds for each in (found.best, found.plain) if each is not None]
    enough = min(others, default=float("inf")) * (1 - ERROR)
    models = {
        RECOMPUTE: replace_layers(model, [recomputed(model.layers, k, model.batch) for k in range(len(model.layers))]),
        STATE: replace_layers(model, model.layers, cuts_state=True),
    }
    tried = (
        (kind, find_plans(other, devices, held, data=data, fixed=fixed, below=enough).best)
        for kind, other in models.items()
    )
    return tuple(Saving(kind, best) for kind, best in tried if best is not None and best.seconds < enough)


def replace_layers(model: CostModel, layers: Sequence[Layer], *, cuts_state: bool = False) -> CostModel:
    """The same step with other layers."""
    return CostModel(layers, model.batch, model.device, donates=model.donates, cuts_state=cuts_state)


def recomputed(layers: Sequence[Layer], index: int, batch: int) -> Layer:
    """A layer that keeps what it gets alone, and is computed once more in its backward pass.

    That takes the whole pass at once, so that nothing is left for a half of its own.
    """
    layer = layers[index]
    received = [sent for each in layers[:index] for to, sent in each.sent.items() if to == index]
    gets = Line(sum(each.constant for each in received), sum(each.each for each in received))
    if not received:
        gets = Line(0.0, layer.inputs / batch)
    (products, moved), (back, moved_back), weights = layer.passes
    kinds = {**back, **products}
    twice = {kind: _sum(back.get(kind, _NONE), products.get(kind, _NONE)) for kind in kinds}
    cuts = tuple(replace(cut, kept=0.0) for cut in layer.cuts)
    passes = ((products, moved), (twice, _sum(moved_back, moved)), weights)
    return replace(layer, passes=passes, kept=gets, late=_NONE, again=layer.kept, cuts=cuts)


def again_line(text: str) -> str:
    """How layers of the library that a module imports are called, so that they are computed again."""
    imported = {word for line in _IMPORTS.findall(text) for word in _WORD.findall(line)}
    found = [line for name, line in _AGAIN.items() if name in imported]
    if found:
        # Of several libraries it does not show whose the layers are.
        return found[0] if len(found) == 1 else _ELSEWHERE
    return _IN_SCAN if _SCAN.search(text) else _ELSEWHERE


_NONE = Line(0.0, 0.0)


def _sum(first: Line, second: Line) -> Line:
    return Line(first.constant + second.constant, first.each + second.each)
