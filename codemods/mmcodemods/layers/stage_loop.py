"""Deal the iterations of a loop over layers out to the pipeline stages.

    for block in self.blocks:  # mm: stages
        x = block(x)
    ->  for i, block in enumerate(self.blocks):
            x = mm.task(block, task=mm.stage(i, len(self.blocks), axis="stage"))(x)

Where no single call is the layer, the loop's body becomes a function, and its lines stay as they are. The parameters
are the names that the loop carries between iterations and the loop variables that it reads; the carried names are also
the results:

    for i in range(self.layers):  # mm: stages
        x = x + self.attention[i](self.norm[i](x))
        x = x + self.mlp[i](x)
    ->  def layer(x, i):
            x = x + self.attention[i](self.norm[i](x))
            x = x + self.mlp[i](x)
            return x
        for i in range(self.layers):
            x = mm.task(layer, task=mm.stage(i, self.layers, axis="stage"))(x, i)

A module that the body makes for a call below, `block = Block(config)`, is made there as before; the call is the layer.

A value that the body keeps in a local list or dictionary (`seen.append(x)`, `seen[i] = x`) is a further result, which
the loop keeps.

To check: the call in the loop is one layer, and layers cost about the same: each stage gets equally
many.

Refused: a loop of unknown length, `while` loops, fewer layers than slices where both are written out, layers that
share a list or dictionary which the loop changes, such as a cache, and bodies that cannot become a function: they
leave the loop, carry a name that may have no value before it, or make closures that a later layer calls.
See https://arxiv.org/abs/1811.06965 for pipeline stages.
"""

from __future__ import annotations

import ast

from mmcodemods._layer_loop import LoopCodemod, check_deal, count, stage_details
from mmrewrite.analysis.loops.layer_calls import layer_call, refuse_carried_containers
from mmrewrite.analysis.loops.outlining import outline_of
from mmrewrite.directives.vocabulary import FOR, KIND_WORDS, OTHER


class StageLoop(LoopCodemod):
    """Makes the layer's call a task, on the stage of its position among all layers."""

    directive = "stages"
    kinds = frozenset((FOR, OTHER))

    def rewrite(self) -> None:
        """Find the layer, its index and the number of layers."""
        if self.hint.kind == OTHER:
            if isinstance(self.site.statement, ast.While):
                self.refuse(
                    "a `while` loop does not say how many layers there are; write `for block in blocks:` and hint that"
                )
            self.site.error(f"`stages` cannot stand on {KIND_WORDS[OTHER]}; it belongs to {KIND_WORDS[FOR]}")
        loop = self.plain_loop()
        layer = layer_call(self.site, loop)
        outline = None
        if layer is not None:
            refuse_carried_containers(self.site, loop, layer)
        else:
            outline = outline_of(self.site, loop)
        position = count(self.site, loop)
        check_deal(self.site, position.total)
        details = [f"{name}={text}" for name, text in stage_details(self.site, counted=True).items()]
        task = f"{self.site.runtime}.stage({position.index}, {position.total}, {', '.join(details)})"
        if layer is not None:
            self.place_call(layer.statement, layer.call, task)
            self.give_index(loop, position)
        elif outline is not None:
            self.call_outlined(loop, outline, self.site.local_name("layer"), task, position)
