"""Compile with `jax.jit` and its shardings instead of `pjit`.

    step = pjit(f, in_axis_resources=(P("data"), None), out_axis_resources=P("data"))
    ->  step = jax.jit(
            f,
            in_shardings=(NamedSharding(mesh, P("data")), NamedSharding(mesh, P())),
            out_shardings=NamedSharding(mesh, P("data")),
        )

If the mesh has no name in this scope, specs stay specs and the context becomes `jax.set_mesh(mesh)`. `None` meant
"replicated" to `pjit` and means "unspecified" to `jax.jit`, so every `None` becomes `P()`; trees of specs that are made
at run time go through a `jax.tree.map` that does so. Specs that were left out stay left out.

If neither is exact at this site, or no mesh context is in view, `pjit` becomes `compat.pjit`. It takes the same
arguments, also by `**`, and looks up the mesh in context when it is called. Without specs and without a mesh context in
view it is `jax.jit`.

A spec that `jax.jit` is given there, which raised, names the mesh where that has a name, and is refused elsewhere.

A `pjit` that stays, because others of its region do, is given `in_shardings` for `in_axis_resources`, which it takes in
the same meaning in a mesh context.

To check: the mesh that is named is the one in whose context the function was called, and a `pjit` without specs was
called in none.

Refused: starred arguments; a fourth or fifth positional argument that does not show which of its three historical
meanings it has; regions that cannot be rewritten as a whole.
See https://docs.jax.dev/en/latest/jax.experimental.pjit.html for what became of `pjit`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmmodernize.calls.call_forms import call_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import make_positional, name_argument, remove_keyword
from mmmodernize.meshes.mesh_contexts import MeshContexts
from mmmodernize.meshes.mesh_members import jits_with_specs
from mmmodernize.meshes.mesh_regions import COMPAT, NAMED, MeshRegions, SitePlan
from mmmodernize.meshes.partition_specs import (
    is_alias,
    make_explicit,
    new_keyword,
    refuse_gone,
    specs_of,
)
from mmmodernize.names.shared_names import PJIT
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import CallForm

# https://docs.jax.dev/en/latest/changelog.html#jax-0-4-6-mar-9-2023
_HAS_SHARDINGS = (0, 4, 6)


class ReplacePjit(ModernizeCodemod):
    """Rewrites the call, its keywords and its specs."""

    names = tuple(PJIT)
    beside = ("jax.jit",)
    regional = True

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses of `pjit`, and the `lower` calls with an argument that only it took."""
        found = list(super().find(module, context))
        yield from found
        compiled = [use for use, _ in jits_with_specs(module)]
        if compiled and context.analysis(MeshContexts).are_there:
            given = context.analysis(MeshRegions).compiled_with_specs
            yield from (Location(module, use.node, use) for use in compiled if use.node in given)
        for node in module.nodes_of(ast.Call) if found else ():
            if isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
                yield from (Location(module, keyword) for keyword in node.keywords if keyword.arg == "_global_avals")

    def rewrite(self) -> None:
        """Decide about one use."""
        site = self.site
        if isinstance(site.node, ast.keyword):
            remove_keyword(site, site.node)
            return
        plan = site.context.analysis(MeshRegions).plan(site.node)
        if plan.reason is not None:
            self.refuse(plan.reason)
        if self.use.name not in PJIT:
            self._name_mesh(plan)
            return
        call = call_of(site.module, self.use.node)
        if plan.style == COMPAT:
            site.needs("0.10", "`mmruntime.compat`")
            if call is not None:
                self._keep_call(call)
        elif call is None:
            self._check_value()
        else:
            self._rewrite_call(call)
            for spec in specs_of(site.module, self.use).values:
                make_explicit(site, spec, plan.mesh)
        if site.is_written_here:
            is_compat = plan.style == COMPAT
            new = site.spell_compat("pjit", plan.why_compat) if is_compat else site.spell("jax.jit")
            site.replace(self.use.node, new)

    def _name_mesh(self, plan: SitePlan) -> None:
        """Have `jax.jit` name the mesh, which it asks `jax.set_mesh` for, and never asked `with mesh:` for."""
        if plan.style == COMPAT:
            self.refuse(
                "`jax.jit` takes a spec under `jax.set_mesh` alone, in every release; write `NamedSharding(mesh, ...)` "
                "with the mesh"
            )
        for spec in specs_of(self.site.module, self.use).values if plan.style == NAMED else ():
            make_explicit(self.site, spec, plan.mesh, keeps_none=True)

    def rewrite_left(self) -> None:
        """Write the names of today for specs, which today's `pjit` takes in the same meaning under `with mesh:`."""
        call = call_of(self.site.module, self.use.node) if self.site.use is not None else None
        if call is None or self.site.target < _HAS_SHARDINGS or "**" in call.stars:
            return
        for keyword in call.keywords:
            new = new_keyword(keyword.arg)
            if new is not None and new != keyword.arg:
                self.site.rename_keyword(keyword, new)

    def _check_value(self) -> None:
        """Check a use as a value: a decorator and an alias are fine."""
        holder = self.site.module.parents[self.use.node]
        if isinstance(holder, ast.FunctionDef) or is_alias(self.site.module, self.use.node):
            return
        self.refuse("`pjit` is used as a value here, so its calls cannot be seen; call it where it is meant")

    def _keep_call(self, form: CallForm) -> None:
        """Keep the arguments, which `compat.pjit` takes as well, but name those at positions of several meanings."""
        self._check_starred(form)
        for index, argument in enumerate(form.positional):
            if index > 2:
                self._name_argument(form, index, argument)
        for spec in specs_of(self.site.module, self.use).values:
            refuse_gone(self.site, spec)

    def _check_starred(self, form: CallForm) -> None:
        if "*" in form.stars:
            self.refuse("a starred argument hides which is which; write the arguments out")

    def _rewrite_call(self, form: CallForm) -> None:
        self._check_starred(form)
        if "**" in form.stars:
            self.refuse("`**` hides which keywords are given; write them out")
        if not form.is_called and form.positional:
            self.refuse("`partial` with a function inside; give `pjit` the function directly")
        function = form.keyword("fun")
        if form.is_called and function is None and not form.positional:
            self.refuse("`pjit` without a function; name the function that it compiles")
        for index, argument in enumerate(form.positional[1:], start=1):
            self._name_argument(form, index, argument)
        for keyword in form.keywords:
            new = new_keyword(keyword.arg)
            if keyword is function:
                self._make_positional(form.call, keyword)
            elif new is not None and new != keyword.arg:
                self.site.rename_keyword(keyword, new)

    def _make_positional(self, call: ast.Call, keyword: ast.keyword) -> None:
        if call.args or call.keywords[0] is not keyword:
            self.refuse("`jax.jit` takes the function by position; move `fun` to the front", keyword)
        make_positional(self.site, keyword)

    def _name_argument(self, form: CallForm, index: int, argument: ast.expr) -> None:
        name_argument(self.site, form.call, form.call.args.index(argument), self._position(index, argument))

    def _position(self, index: int, argument: ast.expr) -> str:
        """The keyword for a positional argument: positions 3 and 4 have had three meanings over time."""
        if index < 3:
            return ("in_shardings", "out_shardings")[index - 1]
        values = argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
        kinds = {type(value.value) for value in values if isinstance(value, ast.Constant)}
        plain = bool(values) and all(isinstance(value, ast.Constant) for value in values)
        if plain and kinds == {int} and index < 5:
            return ("static_argnums", "donate_argnums")[index - 3]
        if plain and kinds == {str} and index == 4:
            return "static_argnames"
        self.refuse(
            f"positional argument {index + 1} of `pjit` has meant different things in different versions of JAX; "
            "give it by keyword",
            argument,
        )
