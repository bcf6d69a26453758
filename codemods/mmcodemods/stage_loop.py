"""Deal the iterations of a loop over layers out to the pipeline stages.

    for block in self.blocks:  # mm: stages
        x = block(x)
    ->  for i, block in enumerate(self.blocks):
            x = mm.task(block, task=mm.stage(i, len(self.blocks), axis="stage"))(x)

Refused: a loop whose length cannot be told without running it, and a body with several calls that could be the layer.
See https://arxiv.org/abs/1811.06965 for pipeline stages.
"""

from __future__ import annotations

import ast

from mmrewrite.loops import LoopCodemod, count, layer_call


class StageLoop(LoopCodemod):
    """Places the layer's call by its position among all layers."""

    directive = "stages"

    def rewrite(self) -> None:
        """Find the layer, its index and the number of layers."""
        loop = self.plain_loop()
        layer = layer_call(self.site, loop)
        position = count(self.site, loop)
        axis, weights = self.hint.argument("axis"), self.hint.argument("weights")
        if axis is None:
            self.site.check_axis("stage", self.hint.start, self.hint.end - self.hint.start)
        elif isinstance(axis.value, ast.Constant):
            self.site.check_axis(str(axis.value.value), axis.start, len(axis.text))
        details = ['axis="stage"' if axis is None else f"axis={axis.text}"]
        if weights is not None:
            details.append(f"weights={weights.text}")
        task = f"{self.site.runtime}.stage({position.index}, {position.total}, {', '.join(details)})"
        self.place_call(layer.statement, layer.call, task)
        self.give_index(loop, position)
