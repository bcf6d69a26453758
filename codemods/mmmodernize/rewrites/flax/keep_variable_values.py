"""Give functions of `jax.lax` the value of a variable of Flax nnx.

    jax.lax.dot(x, self.kernel)
    ->  jax.lax.dot(x, self.kernel.value)

`jax.lax` took a variable for the array that it holds. Since Flax 0.10.7 variables are trees, and it raises.

To check: nothing.

Refused: nothing. Reported, not edited: arguments that only may be variables.
See https://docs.jax.dev/en/latest/jax.lax.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import form_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.array_functions import LAX_OF_TREES
from mmmodernize.types.nnx import NnxVariables
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import Value

_LAX = "jax.lax"


class KeepVariableValues(ModernizeCodemod):
    """Reads the value of each argument that is a variable."""

    changed_in: ClassVar = {"": ("flax", "0.10.7", "stops")}
    extra_markers: ClassVar = (b"lax",)
    in_project: ClassVar = "nnx"

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The arguments of functions of `jax.lax` that are, or may be, variables."""
        variables = context.analysis(NnxVariables)
        if not variables.may_be_in(module):
            return
        # Variables are trees themselves.
        names = [name for name in module.names_below((_LAX,)) if name.count(".") == 2 and name not in LAX_OF_TREES]
        for use in module.uses(names):
            call = module.call_at(use.node)
            for given in _arrays(module, call) if call is not None else ():
                if variables.has(module, given) is not False:
                    yield Location(module, given)

    def rewrite(self) -> None:
        """Read the value, or report the argument."""
        site, node = self.site, self.site.node
        assert isinstance(node, ast.expr)
        text = site.text(node)
        if not site.context.analysis(NnxVariables).is_certain(Value(site.module, node)):
            site.leave(f"since Flax 0.10.7 `jax.lax` raises for a variable; write `{text}.value`, if this is one")
        site.replace(node, f"{text}.value")


def _arrays(module: ModuleUses, call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call that may be a variable by their form, and those in a list of them."""
    form = form_of(module, call)
    for given in (*form.positional, *(word.value for word in form.keywords)):
        parts = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
        yield from (part for part in parts if isinstance(part, ast.Name | ast.Attribute | ast.Subscript))
