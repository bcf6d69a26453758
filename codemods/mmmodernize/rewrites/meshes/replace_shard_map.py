"""Map functions over the shards of a mesh with `jax.shard_map`, and keep their gradients.

    shard_map(f, mesh, in_specs=P("x"), out_specs=P("x"), check_rep=False)
    ->  jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)

`check_rep` becomes `check_vma`, and `auto=A` the complement: `axis_names=frozenset(mesh.axis_names) - A`.

The default has changed its meaning. `psum(grad(local_loss))` was the gradient; now it is that times the number of
devices, without an error. So `check_vma=False`, which keeps the values, is written if the function takes gradients of
functions without collectives, or if it has control flow (today's check rejects replicated carries). The default stays
if nothing is differentiated inside.

Elsewhere `mmruntime.compat.shard_map` takes the old arguments and gives the gradients of JAX before 0.6: where `*` or
`**` hide arguments, `shard_map` is used as a value, the mesh of `auto` has no name, or the function takes gradients
through collectives, whose meaning has changed, or where the source does not show whether it takes any.

To check: gradients through collectives, where the page names them.

Refused: these, with a `target-jax` before 0.10, on which the runtime does not install.
See https://docs.jax.dev/en/latest/migrate_pmap.html and https://docs.jax.dev/en/latest/notebooks/shard_map.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import call_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument, make_positional, name_argument, value_start
from mmmodernize.meshes.mapped_gradients import MappedCode, mapped_by
from mmmodernize.meshes.multimesh_uses import is_carried, is_without_mesh
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.source.names import dotted_name

_PARAMETERS = ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto")


class ReplaceShardMap(ModernizeCodemod):
    """Replaces the name, names the arguments, and keeps the gradients."""

    names: ClassVar[tuple[str, ...]] = ("jax.experimental.shard_map.shard_map",)
    beside: ClassVar = ()

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The uses, but for calls without a mesh in programs for MultiMesh, which `rename_multimesh` replaces."""
        carried = is_carried(module)
        for place in super().find(module, context):
            assert place.use is not None
            if not (carried and place.use.is_direct and is_without_mesh(module, place.use.node)):
                yield place

    def rewrite(self) -> None:
        """Decide about a call of `shard_map`, or of `functools.partial` with it."""
        if not self.site.is_written_here:
            return
        form = call_of(self.site.module, self.use.node)
        if form is None or (form.positional and not form.is_called):
            self._use_compat("`shard_map` is used as a value")
            return
        call, positional = form.call, form.positional
        keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
        arguments: dict[str, ast.expr] = {word: item.value for word, item in keywords.items()}
        if stars_of(call):
            self._use_compat("`*` or `**` hide arguments")
            return
        if "f" in keywords and (call.args or call.keywords[0] is not keywords["f"]):
            self._use_compat("`f=` is not the first argument")
            return
        arguments |= dict(zip(_PARAMETERS, positional, strict=False))
        check_rep = arguments.get("check_rep")
        check, unclear = False, None
        if not _is_false(check_rep):
            check, unclear = self._gradients()
        if unclear is None and check and check_rep is not None and not isinstance(check_rep, ast.Constant):
            unclear = "`check_rep` is not a constant, and here it decides about gradients"
        if "auto" in arguments and not self._is_plain_auto(keywords.get("auto"), arguments.get("mesh")):
            unclear = "the axes that `auto=` leaves cannot be written out"
        if unclear is not None:
            self._use_compat(unclear)
            return
        self.site.needs("0.6.2", "`jax.shard_map`")
        self.site.replace(self.use.node, self.site.spell("jax.shard_map"))
        if "f" in keywords:
            # `jax.shard_map` takes the function by position only.
            make_positional(self.site, keywords["f"])
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

    def _use_compat(self, because: str) -> None:
        self.site.needs("0.10", f"{because}: `mmruntime.compat.shard_map`")
        self.site.replace(self.use.node, self.site.spell_compat("shard_map", because))

    def _is_plain_auto(self, auto: ast.keyword | None, mesh: ast.expr | None) -> bool:
        """Whether the complement of `auto` can be written with `-`."""
        is_named = mesh is not None and dotted_name(mesh) is not None
        return auto is not None and is_named and not isinstance(auto.value, ast.BinOp | ast.IfExp | ast.BoolOp)

    def _rename_auto(self, auto: ast.keyword, mesh: ast.expr) -> None:
        """Write the complement of `auto` among the axes of the mesh."""
        manual = f"frozenset({self.site.text(mesh)}.axis_names) - "
        self.site.rename_keyword(auto, "axis_names")
        value = value_start(self.site, auto)
        self.site.edit(value, value, manual)
        self.site.meant.wrap(auto.value, manual, "")

    def _gradients(self) -> tuple[bool, str | None]:
        """Whether only `check_vma=False` keeps the gradients, and why that cannot be told, else None."""
        flow = self.site.context.flow
        function = mapped_by(self.site.module, self.use.node, "f")
        if function is None:
            return False, "cannot see whether the mapped function, which is not here, takes gradients"
        mapped = MappedCode(flow, function)
        check = bool(mapped.differentiated or mapped.control_flow)
        for inner in mapped.differentiated:
            found = MappedCode(flow, inner)
            if found.differentiated or found.unseen:
                what = found.unseen[0] if found.unseen else "another gradient"
                return check, f"gradients are taken inside of the mapped function, through {what}"
            if found.collectives:
                name = found.collectives[0].removeprefix("jax.")
                return check, f"the gradient of a function with `{name}` inside of `shard_map` has changed in JAX 0.6"
        return check, f"cannot see whether {mapped.unseen[0]} takes gradients" if mapped.unseen else None


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False
