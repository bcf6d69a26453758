"""Constrain values with `jax.lax.with_sharding_constraint`, and name the mesh if no context does.

    x = pjit.with_sharding_constraint(x, P("data", None))
    ->  x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))

Specs change only where the mesh context goes away, as `replace_mesh_context` decides; there, calls of
`jax.lax.with_sharding_constraint` with a bare spec change as well. The keyword `axis_resources` becomes `shardings`.
If the context becomes `compat.mesh_context(mesh)`, specs stay as well: the function finds its mesh there. It becomes
`compat.with_sharding_constraint`, which takes the same arguments, where that may differ: a `try` expects the
`ValueError` that it raised without a mesh up to 2021, calls out of view may give `axis_resources`, or the program uses
`jax.set_mesh`, which JAX asks for a mesh before the innermost context.

To check: the mesh that is named is the one in whose context the function was called.

Refused: starred and `**` arguments; regions that cannot be rewritten as a whole.
See https://docs.jax.dev/en/latest/_autosummary/jax.lax.with_sharding_constraint.html for the function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import call_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.mesh_regions import COMPAT, NAMED, MeshRegions
from mmmodernize.meshes.partition_specs import make_explicit, needs_mesh, specs_of
from mmmodernize.names.shared_names import CONSTRAINTS, OLD_CONSTRAINTS
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

# Packages whose programs `rename_multimesh` carries over.
_MULTIMESH = frozenset(("multimesh", "legate", "jax_plugins"))


class ReplaceConstraint(ModernizeCodemod):
    """Rewrites the name of the function, and the spec where the context goes away."""

    moved: ClassVar = OLD_CONSTRAINTS
    beside: ClassVar = CONSTRAINTS
    regional = True

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses of the old name and of the new one; in a program for MultiMesh, the new one is MultiMesh's."""
        for use in module.uses(CONSTRAINTS if _MULTIMESH.isdisjoint(module.roots) else OLD_CONSTRAINTS):
            yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Decide about one use."""
        site, use = self.site, self.use
        plan = site.context.analysis(MeshRegions).plan(site.node)
        if plan.reason is not None:
            self.refuse(plan.reason)
        call = call_of(site.module, use.node)
        specs = specs_of(site.module, use).values
        is_explicit = call is not None and bool(specs) and not any(needs_mesh(site.module, spec) for spec in specs)
        if plan.style == COMPAT and not is_explicit:
            site.needs("0.10", "`mmruntime.compat`")
            if site.is_written_here:
                site.replace(use.node, site.spell_compat("with_sharding_constraint", plan.why_compat))
            return
        if call is not None:
            if call.stars and plan.style == NAMED:
                self.refuse("starred arguments hide the spec; write the arguments out")
            for keyword in call.keywords:
                if keyword.arg == "axis_resources":
                    site.rename_keyword(keyword, "shardings")
        elif plan.style == NAMED:
            self.refuse("`with_sharding_constraint` is used as a value here, so its specs cannot be seen")
        for spec in specs if plan.mesh is not None else ():
            make_explicit(site, spec, plan.mesh)
        if use.name in OLD_CONSTRAINTS and use.is_direct and isinstance(use.node, ast.Attribute):
            site.replace(use.node, site.spell(OLD_CONSTRAINTS[use.name]))
