"""Map functions over the shards of a mesh with `jax.shard_map`, and keep their gradients.

    shard_map(f, mesh, in_specs=P("x"), out_specs=P("x"), check_rep=False)
    ->  jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)

`check_rep` becomes `check_vma`, and `auto=A` the complement: `axis_names=frozenset(mesh.axis_names) - A`.

The default has changed its meaning. `psum(grad(local_loss))` was the gradient; now it is that times the number of
devices, without an error. So `check_vma=False`, which keeps the values, is written if the function takes gradients of
functions without collectives, or if it has control flow (today's check rejects replicated carries). The default stays
if nothing is differentiated inside.

If `*` or `**` hide arguments, as in a function of your own that forwards `**kwargs`, or if the mesh of `auto` has no
name, `mmruntime.compat.shard_map` takes the old arguments. The mapped function and `check_rep` are then read from the
callers of the function around it.

Refused: gradients, inside, of functions with collectives, whose meaning changed in JAX 0.6; functions that cannot be
seen, unless `check_rep=False` is passed, which means the same as `check_vma=False`; callers that cannot be seen;
`shard_map` as a value.
See https://docs.jax.dev/en/latest/migrate_pmap.html and https://docs.jax.dev/en/latest/notebooks/shard_map.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.analysis.forwarded_arguments import Caller, callers, forwarder
from mmrewrite.modernize.analysis.mapped_gradients import Mapped, MappedFunctions
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.edits.arguments import append_argument, name_argument
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.source.names import dotted_name

_PARAMETERS = ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto")
_PARTIAL = "functools.partial"


class ReplaceShardMap(ModernizeCodemod):
    """Replaces the name, names the arguments, and keeps the gradients."""

    names: ClassVar[tuple[str, ...]] = ("jax.experimental.shard_map.shard_map",)
    # Files that call a function which forwards its arguments.
    extra_markers: ClassVar[tuple[bytes, ...]] = (b"check_rep",)

    def rewrite(self) -> None:
        """Decide about a call of `shard_map`, or of `functools.partial` with it."""
        if not self.use.is_direct:
            self.refuse("this is `jax.experimental.shard_map` under another name; call that by its own name")
        call, positional = self._call()
        self.site.needs("0.6.2", "`jax.shard_map`")
        keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
        arguments: dict[str, ast.expr] = {word: item.value for word, item in keywords.items()}
        if len(keywords) < len(call.keywords) or any(isinstance(item, ast.Starred) for item in call.args):
            if positional and not isinstance(positional[0], ast.Starred):
                arguments["f"] = positional[0]
            if not _is_false(arguments.get("check_rep")):
                self._check_hidden(call, self._function(call, arguments))
            self._use_compat()
            return
        arguments |= dict(zip(_PARAMETERS, positional, strict=False))
        check = self._check(call, arguments)
        if "auto" in arguments and not self._is_plain_auto(keywords.get("auto"), arguments.get("mesh")):
            self._use_compat()
            return
        self.site.replace(self.use.node, self.site.spell("jax.shard_map"))
        self._name_function(call, keywords)
        for index in range(1, len(positional)):
            name = "check_vma" if _PARAMETERS[index] == "check_rep" else _PARAMETERS[index]
            name_argument(self.site, call, call.args.index(positional[index]), name)
        if "check_rep" in keywords:
            self.site.rename_keyword(keywords["check_rep"], "check_vma")
        if "auto" in keywords:
            self._rename_auto(keywords["auto"], arguments["mesh"])
        if check and "check_rep" in arguments:
            self.site.replace(arguments["check_rep"], "False")
        elif check:
            append_argument(self.site, call, "check_vma=False")

    def _call(self) -> tuple[ast.Call, list[ast.expr]]:
        """The call that holds the arguments, and the positional ones of `shard_map`."""
        call = self.site.call
        if call is not None:
            return call, call.args
        holder = self.site.module.parents.get(self.site.node)
        if (
            isinstance(holder, ast.Call)
            and holder.args[:1] == [self.site.node]
            and self.site.resolve(holder.func) == _PARTIAL
        ):
            if len(holder.args) > 1:
                self.refuse("give `functools.partial` the arguments of `shard_map` by name", holder)
            return holder, []
        self.refuse("`shard_map` is used as a value, so how it will be called cannot be seen; call it here")

    def _name_function(self, call: ast.Call, keywords: dict[str, ast.keyword]) -> None:
        """Remove `f=`, since `jax.shard_map` takes the function by position only."""
        if "f" in keywords:
            if call.args or call.keywords[0] is not keywords["f"]:
                self.refuse("`jax.shard_map` takes the function by position: write it first, without `f=`", call)
            self.site.edit(self.site.span(keywords["f"])[0], self.site.span(keywords["f"].value)[0], "")

    def _use_compat(self) -> None:
        self.site.needs("0.10", "`mmruntime.compat`")
        self.site.replace(self.use.node, self.site.spell("mmruntime.compat.shard_map"))

    def _is_plain_auto(self, auto: ast.keyword | None, mesh: ast.expr | None) -> bool:
        """Whether the complement of `auto` can be written with `-`."""
        is_named = mesh is not None and dotted_name(mesh) is not None
        return auto is not None and is_named and not isinstance(auto.value, ast.BinOp | ast.IfExp | ast.BoolOp)

    def _rename_auto(self, auto: ast.keyword, mesh: ast.expr) -> None:
        """Write the complement of `auto` among the axes of the mesh."""
        manual = f"frozenset({self.site.text(mesh)}.axis_names) - "
        self.site.edit(self.site.span(auto)[0], self.site.span(auto.value)[0], f"axis_names={manual}")

    def _check(self, call: ast.Call, arguments: dict[str, ast.expr]) -> bool:
        """Whether `check_vma=False` is needed to keep the values."""
        check_rep = arguments.get("check_rep")
        if _is_false(check_rep):
            return False
        off = self._is_off(self.site.module, self._function(call, arguments))
        if off and check_rep is not None and not isinstance(check_rep, ast.Constant):
            self.refuse("`check_rep` is not a constant, and here it decides about gradients; write it out", check_rep)
        return off

    def _mapped(self, module: ModuleUses, function: ast.AST | None) -> Mapped:
        if function is None:
            return Mapped(unseen=["the mapped function, which is not here,"])
        return MappedFunctions(self.site.context.project, dict(self.site.context.modules)).of(module, function)

    def _is_off(self, module: ModuleUses, function: ast.AST | None) -> bool:
        """Whether today's check would reject a mapped function, or change its values."""
        mapped = self._mapped(module, function)
        for home, inner in mapped.differentiated:
            self._check_inner(self._mapped(home, inner), inner)
        if mapped.unseen:
            self.refuse(
                f"cannot see whether {mapped.unseen[0]} takes gradients, which today's default multiplies by the "
                "number of devices where they are summed; say `check_rep=False`, which keeps their values, or write "
                "`jax.shard_map(..., check_vma=True)` yourself where none are taken"
            )
        return bool(mapped.differentiated or mapped.control_flow)

    def _check_hidden(self, call: ast.Call, function: ast.AST | None) -> None:
        """Refuse unless the gradients stay the same for the arguments that the callers pass in `*` and `**`."""
        module = self.site.module
        if not self._mapped(module, function).unseen:
            self._is_off(module, function)
            return
        around = forwarder(module, call)
        if around is None or not any(marker in around.name.encode() for marker in self.markers()):
            self.refuse(
                "`*` and `**` hide the arguments of `shard_map`; write them out, or say `check_rep=False` here if "
                "they do not",
                call,
            )
        parameter = next(iter((*around.args.posonlyargs, *around.args.args)), None)
        is_first = isinstance(function, ast.Name) and parameter is not None and function.id == parameter.arg
        found = list(callers(self.site.context, module, around))
        if not found:
            self.refuse(f"nothing in view calls `{around.name}`, so the arguments in its `**` are unknown", call)
        for caller in found:
            self._check_caller(caller, around.name, is_first=is_first)

    def _check_caller(self, caller: Caller, name: str, *, is_first: bool) -> None:
        if _is_false(caller.keyword("check_rep")):
            return
        if not caller.is_seen:
            self.refuse(f"cannot see what {caller.place} gives `{name}`, which forwards it; call it there")
        if not is_first:
            self.refuse(
                f"cannot see whether what {caller.place} gives `{name}` takes gradients, which today's default "
                "multiplies by the number of devices where they are summed; say `check_rep=False` there, which keeps "
                "their values"
            )
        self._is_off(caller.module, caller.first)

    def _check_inner(self, mapped: Mapped, inner: ast.expr) -> None:
        if mapped.differentiated or mapped.unseen:
            what = mapped.unseen[0] if mapped.unseen else "another gradient"
            self.refuse(
                f"gradients are taken inside of the mapped function, through {what}, so their meaning today cannot be "
                "told; write `jax.shard_map(..., check_vma=False)` yourself if they are of one shard's own loss",
                self.use.node,
            )
        if mapped.collectives:
            name = mapped.collectives[0].removeprefix("jax.")
            self.refuse(
                f"the gradient of a function with `{name}` inside of `shard_map` is not the same before and since JAX "
                f"0.6; differentiate each shard's own loss and put `{name}` around the gradient, or take the gradient "
                "outside of `shard_map`",
                self.use.node,
            )

    def _function(self, call: ast.Call, arguments: dict[str, ast.expr]) -> ast.AST | None:
        if call is self.site.call:
            return arguments.get("f")
        holder = self.site.module.parents.get(call)
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and call in holder.decorator_list:
            return holder
        if isinstance(holder, ast.Call) and holder.func is call and holder.args:
            return holder.args[0]
        return None


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False
