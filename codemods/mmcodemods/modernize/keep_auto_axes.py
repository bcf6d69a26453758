"""Say that the axes of a mesh are Auto where `jax.make_mesh` does not: its default has changed to Explicit.

    jax.make_mesh((4, 2), ("data", "model"))
    ->  jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

Since JAX 0.9 a mesh without axis types has Explicit axes: contractions over sharded dimensions raise, and
`with_sharding_constraint` becomes an assertion. Code from before then means Auto.

The sizes are given by position, since their keyword was `axis_shapes` before JAX 0.12 and is `axis_sizes` now.

Refused: modules that know axis types (`AxisType`, `reshard`, `explicit_axes`, `auto_axes`, `out_sharding=`), since
there the default may be meant; axis names that are computed; a `target-jax` before 0.7.
See https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html
"""

from __future__ import annotations

import ast
import re
from typing import ClassVar

from mmrewrite.modernize.arguments import append_argument
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.names import dotted_name

_EXPLICIT = re.compile(r"\b(?:AxisType\b(?!\.Auto)|reshard|explicit_axes|auto_axes|out_sharding)\b")


class KeepAutoAxes(ModernizeCodemod):
    """Adds `axis_types` to calls that have none."""

    names: ClassVar[tuple[str, ...]] = ("jax.make_mesh", "jax.experimental.mesh_utils.make_mesh")

    def rewrite(self) -> None:
        """One argument more, or nothing where the axis types are given."""
        call = self.site.call
        if call is None:
            return
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        self._place_sizes(call)
        if "axis_types" in given or len(call.args) > 2:
            return
        found = _EXPLICIT.search(self.site.source.text)
        if found:
            self.refuse(
                f"this mesh has Explicit axes since JAX 0.9, which may be meant here, where `{found.group()}` is used; "
                "say which with `axis_types=`"
            )
        if None in given or any(isinstance(item, ast.Starred) for item in call.args):
            self.refuse("`*` and `**` hide what `make_mesh` is told; say which axes with `axis_types=`", call)
        names = given.get("axis_names") or (call.args[1] if len(call.args) > 1 else None)
        if names is None:
            self.refuse("a mesh without axis names; say which axes with `axis_types=`", call)
        self.site.needs("0.7", "`axis_types=`")
        auto = self.site.spell("jax.sharding.AxisType.Auto")
        append_argument(self.site, call, f"axis_types=({auto},){self._times(names)}")

    def _place_sizes(self, call: ast.Call) -> None:
        sizes = next((word for word in call.keywords if word.arg in ("axis_shapes", "axis_sizes")), None)
        if sizes is not None:
            if call.keywords[0] is not sizes:
                self.refuse("the keyword of the sizes differs between JAX 0.10 and 0.12; give them first, by position")
            self.site.edit(self.site.span(sizes)[0], self.site.span(sizes.value)[0], "")

    def _times(self, names: ast.expr) -> str:
        """What to multiply one axis type by, as source text."""
        if isinstance(names, ast.Tuple | ast.List) and not any(isinstance(item, ast.Starred) for item in names.elts):
            return "" if len(names.elts) == 1 else f" * {len(names.elts)}"
        if dotted_name(names) is None:
            self.refuse("the axis names are computed here; give them a name first, or say `axis_types=`", names)
        return f" * len({self.site.text(names)})"
