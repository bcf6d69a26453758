"""Map functions over the shards of a mesh by `jax.shard_map`, with the gradients that they had.

    shard_map(f, mesh, in_specs=P("x"), out_specs=P("x"), check_rep=False)
    ->  jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)

`check_rep` becomes `check_vma`, and `auto=A` the axes that are left: `axis_names=frozenset(mesh.axis_names) - A`.

The default means something else today. `psum(grad(local_loss))` was the gradient; now it is that times the number of
devices, without an error. So where the function takes gradients of functions without collectives, and where it has
control flow (today's check rejects replicated carries), `check_vma=False` is written, which keeps the values. Where
nothing is differentiated inside, the default stays.

Where `*` or `**` hide arguments, as in a function of your own that hands `**kwargs` on, and where the mesh of `auto`
has no name, `mmruntime.compat.shard_map` takes what the old one took. What is not known here about the function and
about `check_rep` is looked for at the callers of the function around it.

Refused: gradients, inside, of functions that have collectives, which mean different things to JAX before and since 0.6;
functions that cannot be seen, unless `check_rep=False` is given, which means what `check_vma=False` means; callers that
cannot be seen; `shard_map` as a value.
See https://docs.jax.dev/en/latest/migrate_pmap.html and https://docs.jax.dev/en/latest/notebooks/shard_map.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.analysis.forwarded_arguments import Caller, callers, forwarder
from mmrewrite.modernize.analysis.mapped_gradients import Mapped, Mapping
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.edits.arguments import append_argument, name_argument
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.source.names import dotted_name

_PARAMETERS = ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto")
_PARTIAL = "functools.partial"


class ReplaceShardMap(ModernizeCodemod):
    """Replaces the name, names the arguments, and keeps the gradients."""

    names: ClassVar[tuple[str, ...]] = ("jax.experimental.shard_map.shard_map",)
    # Files that call a function which hands its arguments on.
    extra_markers: ClassVar[tuple[bytes, ...]] = (b"check_rep",)

    def rewrite(self) -> None:
        """A call of `shard_map`, or of `functools.partial` with it."""
        if not self.use.is_direct:
            self.refuse("this is `jax.experimental.shard_map` under another name; call that by its own name")
        call, positional = self._call()
        self.site.needs("0.6.2", "`jax.shard_map`")
        keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
        given: dict[str, ast.expr] = {word: item.value for word, item in keywords.items()}
        if len(keywords) < len(call.keywords) or any(isinstance(item, ast.Starred) for item in call.args):
            if positional and not isinstance(positional[0], ast.Starred):
                given["f"] = positional[0]
            if not _is_false(given.get("check_rep")):
                self._check_hidden(call, self._function(call, given))
            self._use_compat()
            return
        given |= dict(zip(_PARAMETERS, positional, strict=False))
        check = self._check(call, given)
        if "auto" in given and not self._is_plain_auto(keywords.get("auto"), given.get("mesh")):
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
            self._rename_auto(keywords["auto"], given["mesh"])
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

    def _use_compat(self) -> None:
        self.site.needs("0.10", "`mmruntime.compat`")
        self.site.replace(self.use.node, self.site.spell("mmruntime.compat.shard_map"))

    def _is_plain_auto(self, auto: ast.keyword | None, mesh: ast.expr | None) -> bool:
        """Whether the axes that are left can be written with `-`."""
        is_named = mesh is not None and dotted_name(mesh) is not None
        return auto is not None and is_named and not isinstance(auto.value, ast.BinOp | ast.IfExp | ast.BoolOp)

    def _rename_auto(self, auto: ast.keyword, mesh: ast.expr) -> None:
        """The axes that are left are those of the mesh but `auto`."""
        manual = f"frozenset({self.site.text(mesh)}.axis_names) - "
        self.site.edit(self.site.span(auto)[0], self.site.span(auto.value)[0], f"axis_names={manual}")

    def _check(self, call: ast.Call, given: dict[str, ast.expr]) -> bool:
        """Whether the check must be switched off to keep the values."""
        told = given.get("check_rep")
        if _is_false(told):
            return False
        off = self._is_off(self.site.module, self._function(call, given))
        if off and told is not None and not isinstance(told, ast.Constant):
            self.refuse("`check_rep` is not a constant, and here it decides about gradients; write it out", told)
        return off

    def _mapped(self, module: ModuleUses, function: ast.AST | None) -> Mapped:
        if function is None:
            return Mapped(unseen=["the mapped function, which is not here,"])
        return Mapping(self.site.context.project, dict(self.site.context.modules)).of(module, function)

    def _is_off(self, module: ModuleUses, function: ast.AST | None) -> bool:
        """Whether today's check would reject a function that is mapped, or change what it computes."""
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
        """Refuse unless the gradients stay whatever `*` and `**` stand for, as far as the callers here go."""
        module = self.site.module
        if not self._mapped(module, function).unseen:
            self._is_off(module, function)
            return
        around = forwarder(module, call)
        if around is None or not any(marker in around.name.encode() for marker in self.markers()):
            self.refuse(
                "`*` and `**` hide what `shard_map` is told; write its arguments out, or say `check_rep=False` here if "
                "they do not",
                call,
            )
        parameter = next(iter((*around.args.posonlyargs, *around.args.args)), None)
        is_first = isinstance(function, ast.Name) and parameter is not None and function.id == parameter.arg
        found = list(callers(self.site.context, module, around))
        if not found:
            self.refuse(f"nothing in view calls `{around.name}`, so what its `**` is given cannot be seen", call)
        for caller in found:
            self._check_caller(caller, around.name, is_first=is_first)

    def _check_caller(self, caller: Caller, name: str, *, is_first: bool) -> None:
        if _is_false(caller.keyword("check_rep")):
            return
        if not caller.is_seen:
            self.refuse(f"cannot see what {caller.place} gives `{name}`, which hands it on; call it there")
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

    def _function(self, call: ast.Call, given: dict[str, ast.expr]) -> ast.AST | None:
        if call is self.site.call:
            return given.get("f")
        holder = self.site.module.parents.get(call)
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and call in holder.decorator_list:
            return holder
        if isinstance(holder, ast.Call) and holder.func is call and holder.args:
            return holder.args[0]
        return None


def _is_false(told: ast.expr | None) -> bool:
    return isinstance(told, ast.Constant) and told.value is False
