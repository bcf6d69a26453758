"""Accumulate gradients over microbatches instead of one large batch.

    loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(size=8, schedule="1f1b")
    ->  loss, grads = mm.microbatch(
            jax.value_and_grad(loss_fn), dim=0, size=8, argnum=1, schedule="1f1b", reduce="mean"
        )(params, batch)

Refused: star-args and several arguments that could be the batch, a loss that does not visibly end in a mean or a sum
and a hint without `reduce=`, batch normalisation, and a random key without `rng=`, because each of these would change
the numbers in silence.
See https://arxiv.org/abs/1811.06965 (section 2.2) for the technique.
"""

from __future__ import annotations

import ast

import libcst as cst

from mmrewrite.codemod import MeshCodemod
from mmrewrite.gradients import find_gradient
from mmrewrite.losses import (
    Loss,
    find_function,
    is_batch_norm,
    keys_closed_over,
    looks_like_key,
    mutable_call,
    reduction_of,
)
from mmrewrite.regions import Reach
from mmrewrite.vocabulary import FOR, STATEMENT


class MicrobatchGrad(MeshCodemod):
    """Wraps the gradient function."""

    directive = "microbatch"
    kinds = frozenset((STATEMENT, FOR))

    def rewrite(self) -> None:
        """Work out which argument is cut, how results are put together and what becomes of random keys."""
        if isinstance(self.site.statement, ast.For | ast.AsyncFor):
            self.refuse(
                "a loop that accumulates gradients by hand; write one `jax.value_and_grad(...)` call over the whole "
                "batch instead, and hint that"
            )
        self.gradient = find_gradient(self.site)
        loss = find_function(self.site, self.gradient.function, self.site.facts, self.site.scope)
        if loss is not None:
            self.check_state(loss)
        argnum = self.argnum()
        self.check_keys(loss, argnum)
        self.arguments = self.keywords(argnum, self.reduce(loss))
        self.target = self.site.call(self.site.statement, self.gradient.wrapped_call)
        self.site.transform(self.site.statement, self)

    def keywords(self, argnum: str, reduce: str) -> dict[str, str]:
        """Arguments of `mm.microbatch`, as source text."""
        hint = self.hint
        dim, size, count = hint.argument("dim"), hint.argument("size"), hint.argument("count")
        rng, schedule = hint.argument("rng"), hint.argument("schedule")
        arguments = {"dim": dim.text if dim else "0"}
        arguments |= {"size": size.text} if size else {}
        arguments |= {"count": count.text} if count else {}
        arguments["argnum"] = argnum
        if rng is not None and not _is_none(rng.value):
            arguments["rng"] = rng.text
        if schedule is not None:
            arguments["schedule"] = schedule.text
        arguments["reduce"] = reduce
        return arguments

    # Which argument

    def argnum(self) -> str:
        """The hint's `argnum`, else the one argument that is neither differentiated nor a key."""
        given = self.hint.argument("argnum")
        if given is not None:
            return given.text
        call = self.argument_call()
        taken = self.gradient.argnums
        rng = self.rng_position()
        candidates = [index for index in range(len(call.args)) if index not in taken and index != rng]
        if len(candidates) == 1:
            return str(candidates[0])
        if not candidates:
            self.refuse(
                "no argument of this call could be the batch: all are differentiated or keys; pass the batch by "
                "position to the loss function, since what it closes over cannot be cut"
            )
        names = ", ".join(f"argnum={index} (`{self.site.text(call.args[index])}`)" for index in candidates)
        self.refuse(f"more than one argument could be the batch; write one of {names}")

    def argument_call(self) -> ast.Call:
        """A call whose arguments show what the gradient function is given."""
        calls = self.gradient.calls
        if not calls:
            self.refuse("this gradient function is not called where it can be seen; write `argnum=` and `rng=`")
        for call in calls:
            if any(isinstance(argument, ast.Starred) for argument in call.args):
                self.refuse("star-args hide which argument is the batch; write `argnum=` and `rng=`", call)
        shapes = {tuple(ast.dump(argument) for argument in call.args) for call in calls}
        if len({len(shape) for shape in shapes}) > 1:
            self.refuse("this gradient function is called with different numbers of arguments; write `argnum=`")
        return calls[0]

    # Random keys

    def rng_position(self) -> int | None:
        """The position that the hint names as the key, if it does so by number."""
        rng = self.hint.argument("rng")
        value = rng.value if rng else None
        return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None

    def check_keys(self, loss: Loss | None, argnum: str) -> None:
        """A key that is not folded would be the same in every microbatch."""
        if self.hint.argument("rng") is not None:
            return
        advice = "write `rng=<argnum>` to fold the microbatch index into it, or `rng=None` to use it as it is"
        for call in self.gradient.calls:
            for index, argument in enumerate(call.args):
                if isinstance(argument, ast.Starred):
                    self.refuse(f"star-args may hide a random key; {advice}", call)
                if str(index) != argnum and self.is_key(argument):
                    self.refuse(f"`{self.site.text(argument)}` looks like a random key; {advice}", argument)
            for keyword in call.keywords:
                if keyword.arg is None or looks_like_key(keyword.arg) or self.is_key(keyword.value):
                    name = keyword.arg or "**" + self.site.text(keyword.value)
                    self.refuse(f"`{name}` looks like a random key; pass it by position and {advice}", keyword.value)
        if loss is not None:
            for index, name in enumerate(loss.parameters):
                if str(index) != argnum and looks_like_key(name):
                    self.refuse(f"the loss takes `{name}`, which looks like a random key; {advice}")
            closed = keys_closed_over(loss)
            if closed:
                self.refuse(
                    f"the loss closes over `{closed[0]}`, which looks like a random key and would be the same in every "
                    f"microbatch; make it an argument and {advice}"
                )

    def is_key(self, node: ast.expr) -> bool:
        """Whether an argument is named like a random key, or makes one."""
        if isinstance(node, ast.Name):
            return looks_like_key(node.id)
        if isinstance(node, ast.Attribute):
            return looks_like_key(node.attr)
        if isinstance(node, ast.Subscript):
            return self.is_key(node.value)
        if isinstance(node, ast.Dict):
            return any(self.is_key(value) for value in node.values)
        if isinstance(node, ast.Call):
            return (self.site.resolve(node.func) or "").startswith("jax.random.")
        return False

    # How results are put together

    def reduce(self, loss: Loss | None) -> str:
        """The hint's `reduce`, else what the loss visibly ends in."""
        given = self.hint.argument("reduce")
        if given is not None:
            return given.text
        found = reduction_of(self.site, loss, self.gradient.has_aux) if loss is not None else None
        if found is None:
            what = f"`{self.site.text(self.gradient.function)}`"
            self.refuse(
                f'cannot see whether {what} ends in a mean or a sum over the batch; write reduce="mean" or reduce="sum"'
            )
        return f'"{found}"'

    def check_state(self, loss: Loss) -> None:
        """State that every microbatch would change is not something that gradients can be averaged over."""
        call = mutable_call(loss)
        if call is not None:
            self.refuse(
                "the loss changes collections of the model (`mutable=`), and each microbatch would change them in "
                "turn; use a normalisation without running statistics"
            )
        for reached in Reach(self.site.project).from_node(loss.facts, loss.node):
            scope = reached.facts.names.scope
            if any(is_batch_norm(reached.facts, node, scope) for node in ast.walk(reached.node)):
                self.refuse(
                    "batch normalisation in the model sees one microbatch at a time, which changes the numbers; use "
                    "layer or group normalisation"
                )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`jax.grad(f)` becomes `mm.microbatch(jax.grad(f), ...)`."""
        if original_node is not self.target:
            return updated_node
        wrapper = f"{self.site.runtime}.microbatch"
        if self.gradient.by_name:
            return updated_node.with_changes(func=self.generated(wrapper, updated_node.func, **self.arguments))
        return self.generated(wrapper, updated_node, **self.arguments)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
