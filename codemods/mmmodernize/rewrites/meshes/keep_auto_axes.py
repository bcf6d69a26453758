"""Keep the axes of meshes from `jax.make_mesh` Auto, since its default has changed to Explicit.

    jax.make_mesh((4, 2), ("data", "model"))
    ->  jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

Since JAX 0.9 a mesh without axis types has Explicit axes: contractions over sharded dimensions raise, and
`with_sharding_constraint` becomes an assertion. Code from before then means Auto.

There is one axis type for each name, or for each size, whichever are written out; a string is one name, and those of
`P("x", "y")` are counted too. If they are in a variable, its `len` is written. If neither can be counted (`*`, `**`,
both computed in the call, `make_mesh` as a value), `mmruntime.compat.make_mesh` counts when it is called.

Sizes are passed by position, since their keyword is `axis_shapes` before JAX 0.12 and `axis_sizes` since then.

To check: the code around it does not use explicit axes on purpose.

Refused: modules that use axis types (`AxisType`, `reshard`, `explicit_axes`, `auto_axes`, `out_sharding=`), since they
may mean the new default, and modules that are imported by one that does or import it; a `target-jax` before 0.7.
See https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import ClassVar

from mmmodernize.calls.call_forms import call_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument, make_positional
from mmmodernize.meshes.partition_specs import is_alias, kind_of
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.source.names import dotted_name

_EXPLICIT = frozenset(("AxisType", "reshard", "explicit_axes", "auto_axes", "out_sharding"))
_ASK_ABOUT_IT = frozenset(("inspect.signature", "builtins.getattr", "builtins.hasattr", "builtins.help"))
_SIZES = ("axis_shapes", "axis_sizes")
_UNCOUNTED = "its axes cannot be counted here; write the sizes and the names out, in this order, or pass `axis_types=`"
_ITERATORS = frozenset(f"builtins.{name}" for name in ("filter", "iter", "map", "reversed"))


class KeepAutoAxes(ModernizeCodemod):
    """Adds `axis_types` to calls that have none."""

    names: ClassVar[tuple[str, ...]] = ("jax.make_mesh", "jax.experimental.mesh_utils.make_mesh")
    changed_in: ClassVar = {"": ("jax", "0.9.0", "changes")}

    def rewrite(self) -> None:
        """Add the argument, or call the function that counts the axes, unless the axis types are given."""
        call = self.site.call
        if call is None:
            if self._is_made_later():
                self._check_explicit()
                self._use_compat()
            return
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        starred = stars_of(call)
        if not starred and ("axis_types" in arguments or len(call.args) > 2):
            self._place_sizes(call)
            return
        self._check_explicit()
        sizes = next((arguments[word] for word in _SIZES if word in arguments), call.args[0] if call.args else None)
        names = arguments.get("axis_names") or (call.args[1] if len(call.args) > 1 else None)
        times = None if starred or sizes is None or names is None else self._times(sizes, names)
        if times is None or not self._is_in_order(call):
            self._use_compat()
            return
        self._place_sizes(call)
        self.site.needs("0.7", "`axis_types=`")
        append_argument(self.site, call, f"axis_types=({self.site.spell('jax.sharding.AxisType.Auto')},){times}")

    def _check_explicit(self) -> None:
        own, other = _of_today(self.site.module), _of_today_beside(self.site.module, self.site.context)
        found = f"here, where `{own}` is" if own is not None else f"where {other}" if other is not None else None
        if found is not None:
            self.refuse(
                f"this mesh has Explicit axes since JAX 0.9, which may be meant {found} used; say which with "
                "`axis_types=`"
            )

    def _use_compat(self) -> None:
        self.site.replace(self.use.node, self.site.spell_compat("make_mesh", _UNCOUNTED))

    def _is_made_later(self) -> bool:
        """Whether a use as a value leads to calls out of view, without axis types."""
        if is_alias(self.site.module, self.use.node):
            return False
        holder = self.site.module.parents[self.use.node]
        if not isinstance(holder, ast.Call):
            return not isinstance(holder, ast.Attribute | ast.Compare)
        made = self.site.resolve(holder.func)
        form = call_of(self.site.module, self.use.node)
        has_types = form is not None and (form.keyword("axis_types") is not None or len(form.positional) > 2)
        return made not in _ASK_ABOUT_IT and not has_types

    def _is_in_order(self, call: ast.Call) -> bool:
        """Whether the sizes can lose their keyword where they are."""
        return all(word.arg not in _SIZES for word in call.keywords[1:])

    def _place_sizes(self, call: ast.Call) -> None:
        sizes = next((word for word in call.keywords if word.arg in _SIZES), None)
        if sizes is not None:
            if not self._is_in_order(call):
                self.refuse("the keyword of the sizes differs between JAX 0.10 and 0.12; give them first, by position")
            make_positional(self.site, sizes)

    def _times(self, sizes: ast.expr, names: ast.expr) -> str | None:
        """The factor of one axis type, as source text; None if the axes cannot be counted here."""
        if self._is_known(names):
            return f" * len({self.site.text(names)})"
        count = self._count(names, is_names=True)
        if count is None:
            count = self._count(sizes, is_names=False)
        if count is None:
            is_counted = dotted_name(sizes) is not None and not self._is_iterator(sizes)
            return f" * len({self.site.text(sizes)})" if is_counted else None
        return "" if count == 1 else f" * {count}"

    def _count(self, node: ast.expr, *, is_names: bool) -> int | None:
        """The number of entries of an expression that is written out, else None."""
        if is_names and isinstance(node, ast.Constant):
            return 1 if isinstance(node.value, str) else None
        parts: Sequence[ast.expr] | None = None
        if isinstance(node, ast.Tuple | ast.List):
            parts = node.elts
        elif is_names and isinstance(node, ast.Call) and kind_of(self.site.module, node) == "spec":
            parts = node.args if not node.keywords else None
        return None if parts is None or any(isinstance(item, ast.Starred) for item in parts) else len(parts)

    def _value(self, node: ast.expr) -> ast.expr | None:
        """The value of a name with one binding, else None."""
        binding = self.site.facts.names.binding(node.id, self.site.scope) if isinstance(node, ast.Name) else None
        return binding.value if binding is not None else None

    def _is_known(self, names: ast.expr) -> bool:
        """Whether a variable is seen to hold several names, rather than a string, which is one."""
        value = self._value(names)
        return (
            value is not None and not isinstance(value, ast.Constant) and self._count(value, is_names=True) is not None
        )

    def _is_iterator(self, sizes: ast.expr) -> bool:
        """Whether a variable holds an iterator, which has no `len`."""
        value = self._value(sizes)
        return isinstance(value, ast.GeneratorExp) or (
            isinstance(value, ast.Call) and self.site.resolve(value.func) in _ITERATORS
        )


def _of_today_beside(module: ModuleUses, context: ModernizeContext) -> str | None:
    """A name of explicit axes in a file that imports a module, or that it imports, in words for a message."""
    for other in context.modules.values():
        tied = any(_imports(one, two) for one, two in ((module, other), (other, module)))
        name = _of_today(other) if tied and other is not module else None
        if name is not None:
            return f"`{name}` of {other.facts.path} is"
    return None


def _imports(module: ModuleUses, other: ModuleUses) -> bool:
    own = other.facts.names.name
    return any(item.name == own or item.name.rpartition(".")[0] == own for item in module.imported)


def _of_today(module: ModuleUses) -> str | None:
    """A name of explicit axes that code of a module uses; what texts and comments say is no evidence."""
    for node in module.nodes_of(ast.Name, ast.Attribute, ast.keyword, ast.alias):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                holder = module.parents.get(node)
                is_auto = name == "AxisType" and isinstance(holder, ast.Attribute) and holder.attr == "Auto"
            case ast.keyword(arg=str(name)):
                is_auto = False
            case ast.alias(name=name):
                # Its uses are names themselves, unless it is called otherwise.
                is_auto = node.asname in (None, name)
            case _:
                continue
        if name in _EXPLICIT and not is_auto:
            return name
    return None
