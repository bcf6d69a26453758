"""Run the call of every iteration as a task, on the slice that the hint computes from the loop variable.

    for i, block in enumerate(self.blocks):  # mm: task(stage=i // 3)
        x = block(x)
    ->  for i, block in enumerate(self.blocks):
            x = mm.task(block, task=mm.Task(name=f"block_{i}", mesh_slice={"stage": i // 3}))(x)

Refused: a body with several calls that could be the layer, because only one of them is the task.
See https://arxiv.org/abs/1811.06965 for pipeline stages.
"""

from __future__ import annotations

import ast

from mmrewrite.layers import callee_name, layer_call
from mmrewrite.loops import LoopCodemod, count


class PlaceLayerTasks(LoopCodemod):
    """Places the layer's call. Two tasks of one name are one task, so names carry the index where slices differ."""

    directive = "task"

    def rewrite(self) -> None:
        """Find the layer and what tells its iterations apart."""
        loop = self.plain_loop()
        layer = layer_call(self.site, loop)
        name = None
        if self.hint.argument("name") is None:
            plain = self.site.task_name(callee_name(layer.call.func))
            name = f'"{plain}"'
            if not all(isinstance(argument.value, ast.Constant) for _, argument in self.axes):
                position = count(self.site, loop)
                name = f'f"{plain}_{{{position.index}}}"'
                self.give_index(loop, position)
        self.place_call(layer.statement, layer.call, self.task_text(name))
