"""Map functions over the shards of a mesh by `jax.shard_map`, with the gradients that they had.

    shard_map(f, mesh, in_specs=P("x"), out_specs=P("x"), check_rep=False)
    ->  jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)

`check_rep` becomes `check_vma`, and `auto=A` the axes that are left: `axis_names=frozenset(mesh.axis_names) - A`.

The default means something else today. `psum(grad(local_loss))` was the gradient; now it is that times the number of
devices, without an error. So where the function takes gradients of functions without collectives, and where it has
control flow (today's check rejects replicated carries), `check_vma=False` is written, which keeps the values. Where
nothing is differentiated inside, the default stays.

Refused: gradients, inside, of functions that have collectives, which mean different things to JAX before and since 0.6;
functions that cannot be seen, unless `check_rep=False` is given, which means what `check_vma=False` means; `**`
arguments; `shard_map` as a value.
See https://docs.jax.dev/en/latest/migrate_pmap.html and https://docs.jax.dev/en/latest/notebooks/shard_map.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.arguments import append_argument, name_argument
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.mapped import Mapped, Mapping
from mmrewrite.names import dotted_name

_PARAMETERS = ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto")
_PARTIAL = "functools.partial"


class ReplaceShardMap(ModernizeCodemod):
    """Replaces the name, names the arguments, and keeps the gradients."""

    names: ClassVar[tuple[str, ...]] = ("jax.experimental.shard_map.shard_map",)

    def rewrite(self) -> None:
        """A call of `shard_map`, or of `functools.partial` with it."""
        if not self.use.is_direct:
            self.refuse("this is `jax.experimental.shard_map` under another name; call that by its own name")
        call, positional = self._call()
        self.site.needs("0.6.2", "`jax.shard_map`")
        keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
        if len(keywords) < len(call.keywords) or any(isinstance(item, ast.Starred) for item in call.args):
            self.refuse("`*` and `**` hide what `shard_map` is told; write its arguments out", call)
        given: dict[str, ast.expr] = {word: item.value for word, item in keywords.items()}
        given |= dict(zip(_PARAMETERS, positional, strict=False))
        check = self._check(call, given)
        self.site.replace(self.use.node, self.site.spell("jax.shard_map"))
        self._name_function(call, keywords)
        for index in range(1, len(positional)):
            name = "check_vma" if _PARAMETERS[index] == "check_rep" else _PARAMETERS[index]
            if name == "auto":
                self.refuse("give `auto` by its name", positional[index])
            name_argument(self.site, call, call.args.index(positional[index]), name)
        if "check_rep" in keywords:
            self.site.rename_keyword(keywords["check_rep"], "check_vma")
        if "auto" in keywords:
            self._rename_auto(keywords["auto"], given.get("mesh"))
        if check and "check_rep" in given:
            self.site.replace(given["check_rep"], "False")
        elif check:
            append_argument(self.site, call, "check_vma=False")

    def _call(self) -> tuple[ast.Call, list[ast.expr]]:
        """The call that holds the arguments, and those of them that `shard_map` gets by position."""
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
        """`f=` goes, since `jax.shard_map` takes the function by position only."""
        if "f" in keywords:
            if call.args or call.keywords[0] is not keywords["f"]:
                self.refuse("`jax.shard_map` takes the function by position: write it first, without `f=`", call)
            self.site.edit(self.site.span(keywords["f"])[0], self.site.span(keywords["f"].value)[0], "")

    def _rename_auto(self, auto: ast.keyword, mesh: ast.expr | None) -> None:
        if mesh is None or dotted_name(mesh) is None:
            self.refuse("`auto` becomes the axes that are left, for which the mesh must have a name here", auto)
        manual = f"frozenset({self.site.text(mesh)}.axis_names) - "
        start, _ = self.site.span(auto)
        if isinstance(auto.value, ast.BinOp | ast.IfExp | ast.Lambda | ast.BoolOp):
            self.refuse("give the axes of `auto` a name first", auto)
        self.site.edit(start, self.site.span(auto.value)[0], f"axis_names={manual}")

    def _check(self, call: ast.Call, given: dict[str, ast.expr]) -> bool:
        """Whether the check must be switched off to keep the values."""
        told = given.get("check_rep")
        if isinstance(told, ast.Constant) and told.value is False:
            return False
        function = self._function(call, given)
        mapped = Mapped(unseen=["the mapped function, which is not here,"])
        if function is not None:
            mapping = Mapping(self.site.context.project, dict(self.site.context.modules))
            mapped = mapping.of(self.site.module, function)
            for module, inner in mapped.differentiated:
                self._check_inner(mapping.of(module, inner), inner)
        if mapped.unseen:
            self.refuse(
                f"cannot see whether {mapped.unseen[0]} takes gradients, which today's default multiplies by the "
                "number of devices where they are summed; say `check_rep=False`, which keeps their values, or write "
                "`jax.shard_map(..., check_vma=True)` yourself where none are taken"
            )
        off = bool(mapped.differentiated or mapped.control_flow)
        if off and told is not None and not isinstance(told, ast.Constant):
            self.refuse("`check_rep` is not a constant, and here it decides about gradients; write it out", told)
        return off

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

    def _function(self, call: ast.Call, given: dict[str, ast.expr]) -> ast.AST | None:
        if call is self.site.call:
            return given.get("f")
        holder = self.site.module.parents.get(call)
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and call in holder.decorator_list:
            return holder
        if isinstance(holder, ast.Call) and holder.func is call and holder.args:
            return holder.args[0]
        return None
