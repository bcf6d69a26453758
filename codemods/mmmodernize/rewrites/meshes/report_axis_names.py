"""Report axes of a mesh whose names are no text.

    mesh = Mesh(devices, (0, 1))
    ->  train.py:1:21: axis names are text today: ...

Since Shardy lays out programs, `jax.jit` raises for an axis that is called `0` or by a member of an enumeration, and
`P(0)` splits nothing where an array is placed by it. Members of an `enum.StrEnum`, or of one that derives from `str`,
are text.

To check: nothing.

Refused: every such mesh; its names are written in specs and in collectives as well.
See https://docs.jax.dev/en/latest/_autosummary/jax.sharding.Mesh.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.shared_names import MESHES
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import ELEMENT, By, Value

_TEXTS = frozenset(("builtins.str", "enum.StrEnum"))
_ENUMS = frozenset(f"enum.{name}" for name in ("Enum", "Flag", "IntEnum", "IntFlag"))


class ReportAxisNames(ModernizeCodemod):
    """Writes nothing."""

    extra_markers: ClassVar = (b"Mesh", b"make_mesh")
    beside: ClassVar = MESHES
    changed_in: ClassVar = {"": ("jax", "0.7.0", "stops")}

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The axis names of meshes, where one of them is no text."""
        for use in module.uses(MESHES):
            call = module.call_at(use.node)
            if call is None:
                continue
            given = [each.value for each in call.keywords if each.arg == "axis_names"]
            names = (*call.args[1:2], *given)[:1]
            if names and _other_name(context.flow, module, names[0]) is not None:
                yield Location(module, names[0], part=use.name)

    def rewrite(self) -> None:
        """Report the names."""
        node = self.site.node
        assert isinstance(node, ast.expr)
        name = _other_name(self.site.context.flow, self.site.module, node)
        self.refuse(
            f"axis names are text today: `jax.jit` raises for `{name}`, and a spec with it may split nothing; write "
            'names such as `"data"`, here, in specs and in collectives'
        )


def _other_name(flow: ValueFlow, module: ModuleUses, names: ast.expr) -> str | None:
    """A name that is seen to be no text, None if there is none."""

    def test(value: Value) -> str | None:
        head, path = value.head, value.path
        if isinstance(head, ast.Constant) and not path:
            return repr(head.value) if not isinstance(head.value, str | None) else ""
        if isinstance(head, ast.ClassDef) and [step.kind for step in path] == [By.ATTRIBUTE]:
            outside = {*flow.bases(value.module, head).outside}
            return f"{head.name}.{path[0].what}" if outside & _ENUMS and not outside & _TEXTS else None
        if value.outside == "builtins.range()[]":
            return "0"
        return None

    found = flow.may(Value(module, names).done(ELEMENT), test).answers
    return next((name for name in found if name), None)
