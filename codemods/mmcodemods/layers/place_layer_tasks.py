"""Run the call of every iteration as a task, on the slice that the hint computes from the loop variable.

    for i, block in enumerate(self.blocks):  # mm: task(stage=i // 3)
        x = block(x)
    ->  for i, block in enumerate(self.blocks):
            x = mm.task(block, task=mm.Task(name=f"block_{i}", mesh_slice={"stage": i // 3}))(x)

Where no single call is the layer, the loop's body becomes a function, as for `stages`.

To check: the slice that is computed from the loop variable is right for its first and its last value.

Refused: bodies that cannot become a function, such as those that leave the loop or fill a list.
See https://arxiv.org/abs/1811.06965 for pipeline stages.
"""

from __future__ import annotations

import ast

from mmcodemods._layer_loop import LoopCodemod, index
from mmrewrite.analysis.loops.layer_calls import callee_name, layer_call
from mmrewrite.analysis.loops.outlining import outline_of


class PlaceLayerTasks(LoopCodemod):
    """Makes the layer's call a task. Tasks of one name are one task, so names have the index where slices differ."""

    directive = "task"

    def rewrite(self) -> None:
        """Find the layer, and the index of the iteration if the slice depends on it."""
        loop = self.plain_loop()
        layer = layer_call(self.site, loop)
        outline = None if layer is not None else outline_of(self.site, loop)
        position, name = None, None
        called = callee_name(layer.call.func) if layer is not None else "layer"
        if self.hint.argument("name") is None:
            plain = self.site.task_name(called)
            name = f'"{plain}"'
            if not all(isinstance(argument.value, ast.Constant) for _, argument in self.axes):
                position = index(self.site, loop)
                name = f'f"{plain}_{{{position.index}}}"'
        if layer is not None:
            self.place_call(layer.statement, layer.call, self.task_text(name))
            if position is not None:
                self.give_index(loop, position)
        elif outline is not None:
            self.call_outlined(loop, outline, self.site.local_name("layer"), self.task_text(name), position)
