"""Call `jax.tree.map` and its family by today's names.

    jax.tree_map(f, params)
    ->  jax.tree.map(f, params)

Imported names keep their alias: `from jax import tree_map` becomes `from jax.tree_util import tree_map`. With a
`target-jax` before 0.4.25, `jax.tree_util.tree_map` is written everywhere. `tree_multimap` is an older name of
`tree_map`.

On old JAX, a `None` in the first tree matched anything in the others; now that raises. If the source shows that the
first tree may hold a `None` (written out, made by a comprehension, or returned by a function of the project), the call
becomes `mmruntime.compat.tree_map`, which does as before:

    jax.tree_map(add, {"w": w, "b": None}, updates)
    ->  compat.tree_map(add, {"w": w, "b": None}, updates)

So does a call of `jax.tree_util.tree_map`, in projects that use names that were gone in JAX 0.4.29, which deprecated
that. If another call raises "different types at key path", write `compat.tree_map` there.

To check: trees that may hold `None` where the source does not show it.

Refused: such a call with a `target-jax` before 0.10, on which the runtime does not install. A name of another module,
such as `haiku.data_structures.tree_map`, is not one of these.
See https://docs.jax.dev/en/latest/jax.tree.html for the functions of `jax.tree`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.partition_specs import TREE_MAPS
from mmmodernize.modules.project_names import ProjectAge
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.array_functions import GIVE_LEAVES
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.arguments import given
from mmrewrite.values.containers import parts_of
from mmrewrite.values.value import Access, By, Own, Value

_FUNCTIONS = ("map", "leaves", "flatten", "unflatten", "structure", "reduce", "transpose", "all")
_FIRST_WITH_JAX_TREE = (0, 4, 25)
# It has its name still, and what else has changed is that of the old names as well.
_STILL_THERE = "jax.tree_util.tree_map"
_STRICT_SINCE = "0.4.29"

_NONE = (
    "the first tree may hold `None` where another holds something; leave the `None` out of both, or pass "
    "`is_leaf=lambda leaf: leaf is None` and skip it in the function"
)


class ReplaceTreeFunctions(ModernizeCodemod):
    """Replaces the name and leaves the arguments alone."""

    moved: ClassVar = {
        **{f"jax.tree_{function}": f"jax.tree_util.tree_{function}" for function in _FUNCTIONS},
        "jax.tree_multimap": "jax.tree_util.tree_map",
        "jax.tree_util.tree_multimap": "jax.tree_util.tree_map",
    }
    beside: ClassVar = (_STILL_THERE,)
    changed_in: ClassVar = {_STILL_THERE: ("jax", _STRICT_SINCE, "warns")}

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses that are written as attributes, and calls under any name whose first tree may hold `None`."""
        found = list(super().find(module, context))
        yield from found
        seen = {place.node for place in found}
        is_old = context.analysis(ProjectAge).is_before("jax", _STRICT_SINCE, module)
        for use in module.uses((*cls.moved, _STILL_THERE) if is_old else cls.moved):
            if use.node not in seen and _first_tree(module, use.node, context, use.name) is not None:
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Write the short new name if the oldest JAX to support has it."""
        site = self.site
        tree = _first_tree(site.module, self.use.node, site.context, self.use.name)
        if tree is not None:
            site.needs("0.10", "`None` in the first tree against something in another: `mmruntime.compat`")
            site.replace(self.use.node, site.spell_compat("tree_map", _NONE))
            return
        new = self.moved[self.use.name]
        if site.target >= _FIRST_WITH_JAX_TREE:
            new = new.replace("jax.tree_util.tree_", "jax.tree.")
        site.replace(self.use.node, site.spell(new))


def _first_tree(module: ModuleUses, function: ast.expr, context: ModernizeContext, name: str) -> ast.expr | None:
    """The first of several trees that a call maps over, if it may hold `None`."""
    call = module.call_at(function)
    if call is None or len(call.args) < 3 or not name.endswith(("tree_map", "tree_multimap")):
        return None
    return call.args[1] if _may_hold_none(context, module, call.args[1]) else None


def _may_hold_none(context: ModernizeContext, module: ModuleUses, tree: ast.expr) -> bool:
    """Whether `None` is written in `tree`, or in what it is made of in view.

    Parameters, attributes of objects and values from libraries show nothing.
    """
    flow = context.flow

    def parts(value: Value) -> Iterator[Value]:
        yield from parts_of(value)
        path = value.path
        if isinstance(value.head, str) and value.head.startswith(GIVE_LEAVES) and path and path[0].kind is By.CALL:
            call = path[0].what
            yield from (each for each in given(call) if not isinstance(each.head, ast.Constant))
            if value.head in TREE_MAPS and (function := call.first()):
                yield function.done(Access(By.CALL, flow.no_arguments))

    return True in flow.may(Value(module, tree), _is_none, also=parts).answers


def _is_none(value: Value) -> bool | None:
    """Whether this is `None`; None where others are behind it."""
    if isinstance(value.head, ast.arg | ast.ClassDef | Own):
        # What a parameter or an attribute is by default is no tree.
        return False
    return True if isinstance(value.head, ast.Constant) and value.head.value is None and not value.path else None
