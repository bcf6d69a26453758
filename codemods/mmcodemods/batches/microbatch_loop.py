"""Run the iterations of a loop that accumulates gradients as microbatches.

    for i in range(4):  # mm: microbatch(count=4, schedule="1f1b")
        loss, g = jax.value_and_grad(loss_fn)(params, batch[i])
        grads = jax.tree.map(jnp.add, grads, g)
    ->  def accumulate(i, grads):
            loss, g = jax.value_and_grad(loss_fn)(params, batch[i])
            grads = jax.tree.map(jnp.add, grads, g)
            return grads
        grads = mm.microbatch_loop(accumulate, count=4, schedule="1f1b")(range(4), grads)

The names that the loop carries between iterations are the sums. The lines of the loop stay as they are, and so does the
code below it, such as a division by the number of microbatches. When the step is traced, the runtime refuses a loop
that does more than add to the carried values.

To check: the iterations of the loop depend on each other by the sums alone.

Refused: loops that leave early, that change something other than local names (`losses.append(loss)`), that leave a
value of their last iteration to later code, or that carry a random key or collections of the model.
See https://arxiv.org/abs/1811.06965 (section 2.2) for the technique.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmcodemods._layer_loop import LoopFunction
from mmrewrite.analysis.loops.accumulation_loops import carried_names, refuse_cutting
from mmrewrite.analysis.meshes.schedules import check_schedule, runtime_arguments
from mmrewrite.analysis.steps.losses import changes_collections
from mmrewrite.codemod.base import MeshCodemod
from mmrewrite.directives.vocabulary import FOR


class MicrobatchLoop(MeshCodemod):
    """Turns the loop's body into a function of one iteration, and the loop into a call of the runtime."""

    directive = "microbatch"
    kinds = frozenset((FOR,))

    def rewrite(self) -> None:
        """Find the carried names, and write the function around the lines of the loop."""
        loop = self.site.statement
        if not isinstance(loop, ast.For):
            self.refuse("an `async for` cannot be traced; write a plain `for`")
        check_schedule(self.site)
        refuse_cutting(self.site, "a `for` loop")
        for statement in loop.body:
            changing = changes_collections(ast.walk(statement))
            if changing is not None:
                self.refuse(
                    "the loop changes collections of the model (`mutable=`), and each microbatch would change them in "
                    "turn; use a normalisation without running statistics",
                    changing,
                )
        names = carried_names(self.site, loop)
        carried = ", ".join(names)
        function = self.site.local_name("accumulate")
        is_plain = isinstance(loop.target, ast.Name)
        item = self.site.text(loop.target) if is_plain else self.site.local_name("item")
        self.function = LoopFunction.at(self.site, function, (item, *names), names)
        arguments = ", ".join([function, *(f"{name}={text}" for name, text in runtime_arguments(self.site).items())])
        items = self.site.unindented(self.site.text(loop.iter), loop)
        # Without parentheses the items of a tuple would become arguments of their own.
        if isinstance(loop.iter, ast.Tuple) and not items.startswith("("):
            items = f"({items})"
        call = f"{self.site.runtime}.microbatch_loop({arguments})({items}, {carried})"
        self.site.insert_blank_above(loop)
        self.site.transform(loop, self)
        unpack = None if is_plain else f"{self.site.text(loop.target)} = {item}"
        self.site.wrap_block(unpack, f"return {carried}", f"{carried} = {call}", loop)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.FunctionDef:
        """`for i in range(n):` becomes `def accumulate(i, grads):`."""
        return self.function.around(updated_node)
