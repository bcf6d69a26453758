"""Map over devices with `jax.jit` of a `jax.shard_map` instead of `jax.pmap`, on request.

    mmrewrite modernize --select replace_pmap

    step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
    ->  step = compat.pmap(train_step, axis_name="batch", donate_argnums=0)

`jax.pmap` still works, so this is optional. JAX only maintains it, in favour of `jax.shard_map`. Since JAX 0.8 it is
made of that, and raises if an argument lies on other devices than it should, or is split differently. Before, it moved
such arguments, and `compat.pmap` does so again.

The runtime does it because the exact code is long: there are as many devices as the arguments of a call have rows, the
mapped axis is removed from each leaf of the arguments and added to each leaf of the results, and `check_vma=False`
makes gradients inside those of one device's own loss.

Results differ in their placement. Of a result `x`, `x[3]` was an array on the fourth device and `x + 1` one on the
first; now both lie on all devices. `x.addressable_shards[3].data.squeeze(0)` is a row on its own device.

This is not a step towards one program for the whole batch, without a leading axis of devices. That would be equivalent
only if the loss is a plain mean over the batch, and it changes the data pipeline, the random keys and the checkpoints.

To check: code that reads where the results lie; a call of `jit` with a result and an array that was put on one device,
which raises today.

Refused: `pmap` of a function that uses `pmap`, which JAX does not run any more; `devices`, `backend`,
`axis_size` and `global_arg_shapes`; starred arguments; aliases of `pmap`, and `pmap` as a value; a `target-jax` before
0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/migrate_pmap.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmmodernize.calls.call_forms import call_of, form_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.mapped_gradients import PMAP, MappedCode, mapped_by
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import CallForm

_POSITIONS = 2
_GONE = {
    "devices": "`devices` chooses devices, and `compat.pmap` takes the first of this process; leave it out if it names "
    "those, else write `jax.jit(jax.shard_map(..., check_vma=False))` over a mesh of the devices",
    "backend": "`backend` chooses devices, and `compat.pmap` takes those of the default backend; leave it out, and "
    'choose by `jax.config.update("jax_platforms", ...)` at the start of the program',
    "axis_size": "`axis_size` is the number of rows that the arguments have on all processes; leave it out",
    "global_arg_shapes": "`global_arg_shapes` is nothing that `jax.pmap` takes today; leave it out",
}
_ROWS = "its arguments have a row for each device; write the function anew for whole arrays, with `jax.jit` and a mesh"
_TAKEN = frozenset(("fun", "axis_name", "in_axes", "out_axes", "static_broadcasted_argnums", "donate_argnums"))


class ReplacePmap(ModernizeCodemod):
    """Replaces the name by the runtime's and leaves the arguments alone."""

    names: ClassVar[tuple[str, ...]] = (PMAP,)
    on_request_only = True

    def rewrite(self) -> None:
        """Decide about one use: a decorator, a call, or the first argument of a `partial` that is one of these."""
        if not self.use.is_direct:
            self.refuse("this is `jax.pmap` under another name; call that by its own name")
        self.site.needs("0.10", "`mmruntime.compat`")
        for form in self._calls():
            self._check(form)
        nested = self.site.context.analysis(_NestedPmaps).reason(self.use.node)
        if nested is not None:
            self.refuse(nested)
        self.site.replace(self.use.node, self.site.spell_compat("pmap", _ROWS))

    def _calls(self) -> list[CallForm]:
        """The calls that pass arguments to `pmap`."""
        module = self.site.module
        form = call_of(module, self.use.node)
        if form is None:
            if not _is_decorator(module.parents.get(self.use.node), self.use.node):
                self.refuse(
                    "`jax.pmap` is used as a value here, so how it will be called cannot be seen; call it where it is "
                    "meant"
                )
            return []
        made = module.call_at(form.call) if not form.is_called else None
        if made is not None:
            return [form, form_of(module, made)]
        if not form.is_called and not _is_decorator(module.parents.get(form.call), form.call):
            self.refuse(
                "`partial` of `jax.pmap` is kept here, so what else it will be given cannot be seen; call `jax.pmap` "
                "where it is meant"
            )
        return [form]

    def _check(self, form: CallForm) -> None:
        if form.stars:
            self.refuse("`*` and `**` hide the arguments of `jax.pmap`; write them out", form.call)
        if len(form.positional) > _POSITIONS:
            self.refuse(
                "`jax.pmap` takes a function and the name of the axis by position; name the other arguments",
                form.positional[_POSITIONS],
            )
        for keyword in form.call.keywords:
            name = str(keyword.arg)
            if name in _GONE:
                self.refuse(_GONE[name], keyword)
            if name not in _TAKEN:
                self.refuse(f"`jax.pmap` has no parameter `{name}`", keyword)


def _is_decorator(holder: ast.AST | None, node: ast.expr) -> bool:
    return isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and node in holder.decorator_list


class _NestedPmaps:
    """The `pmap`s of a project that map a function with another `pmap` inside, or are inside of one."""

    def __init__(self, context: ModernizeContext) -> None:
        self._reasons: dict[ast.AST, str] = {}
        flow = context.flow
        uses = [(module, use.node) for module in context.modules.values() for use in module.uses((PMAP,))]
        for module, node in uses:
            function = mapped_by(module, node, "fun")
            seen = MappedCode(flow, function, whole=True).seen if function is not None else ()
            for other, inner in uses:
                if inner in seen and inner is not node:
                    self._reasons.setdefault(node, _reason(f"maps a function that uses it at {_place(other, inner)}"))
                    self._reasons.setdefault(
                        inner, _reason(f"is used by a function that is mapped at {_place(module, node)}")
                    )

    def reason(self, node: ast.AST) -> str | None:
        """Why a use of `pmap` must stay if it is nested, else None."""
        return self._reasons.get(node)


def _reason(what: str) -> str:
    return (
        f"this `jax.pmap` {what}, and JAX does not run one inside of the other any more; write one `jax.shard_map` "
        "over a mesh with an axis for each"
    )


def _place(module: ModuleUses, node: ast.expr) -> str:
    return f"{module.facts.path}:{node.lineno}"
