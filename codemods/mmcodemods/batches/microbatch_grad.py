"""Accumulate gradients over microbatches instead of one large batch.

    loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(size=8, schedule="1f1b")
    ->  loss, grads = mm.microbatch(
            jax.value_and_grad(loss_fn), dim=0, size=8, argnum=1, schedule="1f1b", reduce="exact"
        )(params, batch)

With `reduce="exact"`, the runtime proves from the traced program how results of microbatches make up those of the whole
batch, or raises at the line where examples meet in another way. A `reduce=` in the hint is copied, and held against the
proof as well. So is `batch_stats="microbatch"`, with which each microbatch normalises by its own statistics.
`schedule="auto", memory_bytes="40GiB"` becomes `schedule=mm.schedules.Auto(memory_bytes=40 * 2**30)`.

A `jax.lax.scan` or `jax.lax.fori_loop` that accumulates gradients becomes `mm.microbatch_scan(jax.lax.scan)(...)`.
When the step is traced, that refuses a loop which does more than add to its carry.
A batch that the loss closes over becomes a parameter, and a batch by keyword becomes positional.

To check: the argument at `argnum` is the batch, and `dim` is the dimension of its examples.

Refused: `optax.MultiSteps` and `optax.apply_every`, which accumulate over several steps; and, because each of these
would change the numbers or hide what is cut, star-args, several arguments that could be the batch, batch normalisation
without `batch_stats=`, and a random key without `rng=`.
What a loss changes around itself, such as a list or an attribute of an object, the runtime refuses at its line when the
step is traced, as the loss is traced more than once; what it puts into its batch, such as `batch["x"] = y`, where it is
read after the call. It warns of microbatches of stages or tasks in a loop or a branch of `jax.lax`, each of which is
one program.
A Python loop is the work of `microbatch_loop`.
See https://arxiv.org/abs/1811.06965 (section 2.2) for the technique.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

from mmrewrite.analysis.loops.accumulation_loops import refuse_cutting
from mmrewrite.analysis.meshes.schedules import check_schedule, runtime_arguments
from mmrewrite.analysis.objects.annotations import annotation_of, is_fully_annotated
from mmrewrite.analysis.steps.batch_arguments import choose_batch
from mmrewrite.analysis.steps.closures import reachable
from mmrewrite.analysis.steps.gradients import find_gradient, refuse_several
from mmrewrite.analysis.steps.losses import (
    Loss,
    UnnamedKey,
    batch_norms,
    changes_collections,
    find_function,
    unnamed_keys,
)
from mmrewrite.codemod.base import MeshCodemod, expression
from mmrewrite.project.reach import reach_of
from mmrewrite.values.arguments import given
from mmrewrite.values.containers import parts_of
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import By, Value

Item = TypeVar("Item", cst.Arg, cst.Param)

_OPTIMIZERS = ("optax.", "flax.training.train_state.", "flax.nnx.Optimizer", "flax.nnx.ModelAndOptimizer")
_LOOPS = frozenset(("jax.lax.scan", "jax.lax.fori_loop"))
_BY_MICROBATCH = (
    'or write `batch_stats="microbatch"` to have each microbatch use its own statistics, and to average them'
)


def _accumulating(value: Value) -> str | None:
    """The function of optax that accumulates, where a value is that or made by it."""
    package, _, name = str(value.head).rpartition(".")
    return name if package.startswith("optax") and name in ("MultiSteps", "apply_every") else None


def _held_by_optimizers(value: Value) -> list[Value]:
    """What an optimizer is made of: the parts of `optax.chain`, what a `TrainState` or an `nnx.Optimizer` holds."""
    is_made = str(value.head).startswith(_OPTIMIZERS) and value.path[:1] and value.path[0].kind is By.CALL
    parts = [*given(value.path[0].what)] if is_made else []
    return [*parts, *(inner for each in parts for inner in parts_of(each))]


class MicrobatchGrad(MeshCodemod):
    """Wraps the gradient function."""

    directive = "microbatch"

    def rewrite(self) -> None:
        """Find the batch and the treatment of random keys."""
        self.target: cst.Call | None = None
        self.loop: cst.Call | None = None
        self.uses: list[cst.Call] = []
        self.function: cst.Lambda | None = None
        self.annotations: list[str] = []
        check_schedule(self.site)
        calls = list(self.site.calls(self.site.statement))
        self.refuse_optimizers(calls)
        loops = [call for call in calls if self.site.resolve(call.func) in _LOOPS]
        if loops:
            self.wrap_loop(loops)
            return
        self.gradient = find_gradient(self.site)
        losses = [find_function(self.site, maker.loss) for maker in self.gradient.makers]
        loss, *others = losses
        if any(other is None or loss is None or other.parameters != loss.parameters for other in others):
            refuse_several(self.site, self.gradient.makers, self.gradient.wrapped_call.func)
        self.batch = choose_batch(self.site, self.gradient, loss)
        self.refuse_problems([each for each in losses if each is not None])
        self.check_dimensions()
        self.arguments = self.keywords()
        self.target = self.site.call(self.site.statement, self.gradient.wrapped_call)
        self.site.transform(self.site.statement, self)
        self.change_calls(loss)

    def wrap_loop(self, loops: list[ast.Call]) -> None:
        """`jax.lax.scan(...)` becomes `mm.microbatch_scan(jax.lax.scan)(...)`, which checks that it only adds up."""
        if len(loops) > 1:
            self.refuse("more than one loop in this statement; give each a statement of its own")
        (call,) = loops
        refuse_cutting(self.site, f"`{self.site.text(call.func)}`")
        body = call.args[2 if self.site.resolve(call.func) == "jax.lax.fori_loop" else 0 :][:1]
        value = values_of(self.site.project).value_in(self.site.facts, body[0]) if body else None
        function = find_function(self.site, value) if value is not None else None
        problem = self.state_that_changes(function, in_loop=True) if function is not None else None
        if problem is not None:
            self.refuse(problem)
        self.loop = self.site.call(self.site.statement, call)
        self.arguments = runtime_arguments(self.site)
        self.site.transform(self.site.statement, self)

    def change_calls(self, loss: Loss | None) -> None:
        """Have the calls pass closed-over values and moved keywords by position."""
        if not self.batch.appended and not self.batch.moved:
            return
        for use in self.gradient.uses:
            self.uses.append(self.site.call(use.statement, use.call))
            self.site.transform(use.statement, self)
        if self.batch.appended and self.batch.remade is None and loss is not None:
            if isinstance(loss.node, ast.Lambda):
                statement = values_of(self.site.project).uses_of(loss.facts).statement_of(loss.node)
                self.function = self.site.lambda_node(statement, loss.node)
                self.site.transform(statement, self)
            else:
                if is_fully_annotated(loss.node):
                    self.annotations = [annotation_of(self.site, each, loss.scope) for each in self.batch.appended]
                self.site.transform(loss.node, self)

    def refuse_optimizers(self, calls: list[ast.Call]) -> None:
        """Refuses accumulation in the optimizer, which spans several steps."""
        flow = values_of(self.site.project)
        for call in calls:
            found = flow.may(flow.value_in(self.site.facts, call.func), _accumulating, also=_held_by_optimizers).answers
            for name in found:
                what = "adds up updates" if name == "apply_every" else "averages gradients"
                self.refuse(
                    f"`optax.{name}` {what} over several calls of the step, not over the microbatches of one; remove "
                    "it, give the step the whole batch, and hint the call of its gradient",
                    call,
                )

    def keywords(self) -> dict[str, str]:
        """Arguments of `mm.microbatch`, as source text."""
        written = {"dim": "0", "reduce": '"exact"'} | runtime_arguments(self.site)
        written["argnum"] = self.batch.argnum
        written.pop("rng", None)
        if self.batch.rng is not None:
            written["rng"] = self.batch.rng
        order = ("dim", "size", "count", "argnum", "rng", "schedule", "reduce")
        others = ("check", "batch_stats", "sync", "all_gather", "accumulate", "slices")
        return {name: written[name] for name in (*order, *others) if name in written}

    def check_dimensions(self) -> None:
        """Report dimensions of the examples that do not go with the arguments that are cut."""
        dim, slices = self.hint.argument("dim"), self.hint.argument("slices")
        if dim is None or not isinstance(dim.value, ast.Tuple | ast.List):
            return
        cut = ast.parse(self.batch.argnum, mode="eval").body
        given = len(dim.value.elts)
        if isinstance(cut, ast.Constant | ast.UnaryOp):
            self.site.error(f"`dim={dim.text}` is for several arguments, and one is cut; write one number", dim)
        if isinstance(cut, ast.Tuple | ast.List) and len(cut.elts) != given:
            self.site.error(
                f"`dim={dim.text}` has {given} dimensions, and `argnum={self.batch.argnum}` cuts {len(cut.elts)} "
                "arguments; write one number, or one for each",
                dim,
            )
        if slices is not None and len({ast.unparse(each) for each in dim.value.elts}) > 1:
            self.site.error(
                f"`slices=` cuts the dimension behind that of the examples, and `dim={dim.text}` has several; write "
                "one number",
                dim,
            )

    # Random keys

    def refuse_problems(self, losses: Sequence[Loss]) -> None:
        """Refuses what the hint must say about the batch and random keys, and state that changes, all at once."""
        keys: list[UnnamedKey] = []
        if self.hint.argument("rng") is None:
            cut = (self.cut() or frozenset()).union(self.batch.appended)
            names = self.batch.appended
            found = {
                key.place: key if each is None else reachable(self.site, self.gradient, each, key, names)
                for each in losses or (None,)
                for key in unnamed_keys(self.site, self.gradient, each, cut)
            }
            keys = list(found.values())
        question = self.batch.question
        problems = [*([question] if question is not None else []), *(key.reason for key in keys)]
        places = [key.place for key in keys if key.place is not None]
        if question is not None or places:
            problems[-1] += f"; write {self.better_hint(places)}"
        states = (self.state_that_changes(each) for each in losses)
        problems += [state for state in (next(filter(None, states), None),) if state is not None]
        if problems:
            self.refuse("; besides, ".join(problems))

    def better_hint(self, keys: Sequence[str]) -> str:
        """The hint with what it lacks, and what that means."""
        arguments = {argument.name or argument.text: argument.text for argument in self.hint.arguments}
        meaning = []
        if self.batch.question is not None:
            arguments["argnum"] = self.batch.argnum
            meaning.append("`argnum=` keeps only those that have one row per example")
        if keys:
            arguments["rng"] = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
            meaning.append("`rng=` folds the microbatch index into each key (`rng=None` uses keys as they are)")
        texts = (name if name == text else f"{name}={text}" for name, text in arguments.items())
        return f"`{self.hint.directive}({', '.join(texts)})`, where {' and '.join(meaning)}"

    def cut(self) -> frozenset[object] | None:
        """Positions or names of the arguments that are cut, None where they are computed."""
        try:
            value = ast.literal_eval(self.batch.argnum)
        except ValueError:
            return None
        return frozenset(value if isinstance(value, tuple | list) else (value,))

    def state_that_changes(self, loss: Loss, *, in_loop: bool = False) -> str | None:
        """What is wrong with state that each microbatch would change in turn, unless the hint wants that."""
        if self.hint.argument("batch_stats") is not None:
            return None
        advice = "" if in_loop else f", {_BY_MICROBATCH}"
        call = changes_collections(loss.nodes())
        if call is not None:
            return (
                "the loss changes collections of the model (`mutable=`), and each microbatch would change them in "
                f"turn; use a normalisation without running statistics{advice}"
            )
        for reached in reach_of(self.site.project).from_node(loss.facts, loss.node):
            if batch_norms(reached.facts, reached.node, reached.facts.names.scope):
                return (
                    "batch normalisation in the model sees one microbatch at a time, which changes the numbers; use "
                    f"layer or group normalisation, or nothing but running averages: `use_running_average=True`{advice}"
                )
        return None

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """`jax.grad(f)` becomes `mm.microbatch(jax.grad(f), ...)`, and its calls pass the batch by position."""
        wrapper = f"{self.site.runtime}.microbatch"
        if original_node is self.target and self.batch.remade is not None:
            first, *rest = updated_node.args
            remade = first.with_changes(value=expression(self.batch.remade))
            updated_node = updated_node.with_changes(args=[remade, *rest])
        if original_node is self.target and not self.gradient.by_name:
            return self.generated(wrapper, updated_node, **self.arguments)
        if original_node is self.target:
            updated_node = updated_node.with_changes(func=self.generated(wrapper, updated_node.func, **self.arguments))
        if original_node is self.loop:
            scan = self.generated(f"{self.site.runtime}.microbatch_scan", updated_node.func, **self.arguments)
            return updated_node.with_changes(func=scan)
        if any(original_node is use for use in self.uses):
            updated_node = updated_node.with_changes(args=self.by_position(updated_node.args))
        return updated_node

    def by_position(self, arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
        """Arguments with the moved keywords and the appended names at their positions."""
        named = {argument.keyword.value: argument for argument in arguments if argument.keyword is not None}
        moved = [cst.Arg(named[name].value) for name in self.batch.moved]
        positional = [argument for argument in arguments if argument.keyword is None and not argument.star]
        rest = [
            argument
            for argument in arguments
            if argument not in positional
            and (argument.keyword is None or argument.keyword.value not in self.batch.moved)
        ]
        added = [*moved, *(cst.Arg(cst.Name(name)) for name in self.batch.appended)]
        if arguments and arguments[-1] not in positional:
            return [*positional, *added, *rest]
        return extended(positional, added, "whitespace_after_arg")

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Closed-over values become parameters of the loss."""
        return updated_node.with_changes(params=self.with_parameters(updated_node.params))

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.Lambda:
        """Closed-over values become parameters of a loss that is a lambda."""
        if original_node is not self.function:
            return updated_node
        return updated_node.with_changes(params=self.with_parameters(updated_node.params))

    def with_parameters(self, parameters: cst.Parameters) -> cst.Parameters:
        """Parameters with the appended names after the positional ones."""
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        added = [cst.Param(cst.Name(name)) for name in self.batch.appended]
        if self.annotations:
            equal = cst.AssignEqual()
            kinds = [cst.Annotation(expression(each)) for each in self.annotations]
            added = [each.with_changes(annotation=kind) for each, kind in zip(added, kinds, strict=True)]
        if self.batch.has_defaults:
            added = [each.with_changes(default=each.name, equal=equal) for each in added]
        return parameters.with_changes(params=extended(parameters.params, added, "whitespace_after_param"))


def extended(present: Sequence[Item], added: Sequence[Item], space: str) -> list[Item]:
    """Arguments or parameters and more of them, on the line of the last; its comma and line break go to the end."""
    items: list[Item] = list(present)
    more: list[Item] = list(added)
    if not items or not more:
        return items + more
    last = items[-1]
    ends = {"comma": last.comma, space: getattr(last, space)}
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    items[-1] = last.with_changes(**{"comma": comma, space: cst.SimpleWhitespace("")})
    more[-1] = more[-1].with_changes(**ends)
    return items + more
